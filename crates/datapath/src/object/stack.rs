//! The stack that the programs take, as Linux 6.1 counts it: newer kernels let more pass, so nothing else would tell.

use std::collections::{BTreeMap, BTreeSet};

use libbpf_sys::bpf_insn;

use super::{DATAPATH, NAMES, PROBES, Programs, SOCKETS};

/// `MAX_BPF_STACK`, bytes.
const MOST: u32 = 512;
/// `check_max_stack_depth` counts each frame up to a multiple of this, and an empty one as well.
const STEP: u32 = 32;
const FRAME: u8 = 10;

/// What instructions from `start` on take by themselves, in bytes, and where the functions begin that they call.
fn frame(instructions: &[bpf_insn], start: usize) -> (u32, Vec<usize>) {
    let (mut deepest, mut calls) = (0, Vec::new());
    let mut copies = BTreeSet::new();
    let mut reach = |offset: i32| deepest = deepest.max(offset.min(0).unsigned_abs());
    for (at, instruction) in (start..).zip(instructions) {
        let (to, from) = (instruction.dst_reg(), instruction.src_reg());
        match instruction.code {
            // BPF_CALL of a function of the program.
            0x85 if from == 1 => calls.extend((at + 1).checked_add_signed(instruction.imm as isize)),
            // r = r10
            0xbf if from == FRAME => drop(copies.insert(to)),
            // r += imm
            0x07 if copies.remove(&to) => reach(instruction.imm),
            // BPF_LDX; BPF_ST and BPF_STX
            code if (code & 7 == 1 && from == FRAME) || (matches!(code & 7, 2 | 3) && to == FRAME) => {
                reach(instruction.off.into());
            }
            // BPF_ALU, BPF_ALU64 and loads into it
            code if matches!(code & 7, 0 | 1 | 4 | 7) => drop(copies.remove(&to)),
            _ => {}
        }
    }
    (deepest, calls)
}

/// The functions of a program by where they begin.
fn functions(instructions: &[bpf_insn]) -> BTreeMap<usize, &[bpf_insn]> {
    let (_, calls) = frame(instructions, 0);
    let starts: BTreeSet<usize> = calls.into_iter().chain([0]).collect();
    let ends = starts.iter().skip(1).copied().chain([instructions.len()]);
    starts.iter().zip(ends).map(|(start, end)| (*start, &instructions[*start..end])).collect()
}

/// All frames together where a function has called what takes most.
fn depth(functions: &BTreeMap<usize, &[bpf_insn]>, start: usize) -> u32 {
    let (own, calls) = frame(functions[&start], start);
    let deepest = calls.iter().map(|call| depth(functions, *call)).max().unwrap_or(0);
    own.max(1).next_multiple_of(STEP) + deepest
}

#[test]
fn linux_6_1_finds_the_stack_deep_enough() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    for object in [DATAPATH, SOCKETS, NAMES, PROBES] {
        // Functions are put together when a program is loaded.
        let Ok(programs) = Programs::load(object, |_| Ok(())) else { continue };
        for program in programs.object.progs() {
            let functions = functions(program.insns());
            let deep = depth(&functions, 0);
            assert!(program.name() != "ingress_l2" || functions.len() > 5, "its calls were not found");
            assert!(deep <= MOST, "{:?} takes {deep} bytes of stack in {} functions", program.name(), functions.len());
        }
    }
}
