//! Link-layer addresses of hosts on a link, asked for and answered for beside the kernel's own stack.

mod packet;
pub mod proxy;
mod socket;
pub mod solicitor;
