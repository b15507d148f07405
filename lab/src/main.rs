//! Hosts in network namespaces, emulated links, scenarios with real programs.
use whimbrel_lab::*;
fn main() -> Result<()> {
    let mut lab = Lab::new(Options::default())?;
    let mut c = Campus::new(&mut lab)?;
    let a = c.add(&mut lab, SiteSpec::named("a"))?;
    let b = c.add(&mut lab, SiteSpec::named("b").behind(Gateway::Nat { random_ports: true }))?;
    let s = c.add(&mut lab, SiteSpec::named("s"))?;
    let laptop = lab.host("laptop")?;
    let server = lab.host("server")?;
    let at_s = server.join(&s.network, &Join::by("eth0"))?;
    let at_a = laptop.join(&a.network, &Join::default())?;
    println!("{}", laptop.command("ping").args(["-c5", "-i0.1", &at_s.ipv4()?.to_string()]).run()?);
    println!("{}", laptop.command("ping").args(["-c5", "-i0.1", &at_s.ipv6()?.to_string()]).run()?);
    let at_b = laptop.roam(&at_a, &b.network, &Join::default())?;
    println!("roam took {:?}", at_b.usable_at - at_b.started_at);
    println!("{}", laptop.command("ping").args(["-c5", "-i0.1", &at_s.ipv4()?.to_string()]).run()?);
    println!("{}", laptop.ip_output("addr")?);
    println!("{:?}", s.link()?.counters(Direction::Down));
    a.link()?.set_both(&Shape::delay(std::time::Duration::from_millis(3)));
    Ok(())
}
