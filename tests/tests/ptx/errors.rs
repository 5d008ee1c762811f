//! What the interpreter refuses to read and to execute.

use super::{OWN_WORD, entry, launch, run};
use tensorc_tests::ptx::Module;

/// Text that is not read, and words of the reason.
const UNREADABLE: &[(&str, &str)] = &[
    ("add.s32 %r3, %r4;", "`add.s32 %r3, %r4;`: the operands are not those of the instruction"),
    ("frobnicate.b32 %r3, %r4;", "`frobnicate.b32 %r3, %r4;`: the instruction is not known"),
    // Without a rounding the assembler may contract it.
    ("add.f32 %r3, %r4, %r5;", "the instruction is not known"),
    ("add.rz.f32 %r3, %r4, %r5;", "the instruction is not known"),
    ("mul.f16 %rs3, %rs4, %rs5;", "the instruction is not known"),
    ("cvt.f32.s32 %r3, %r4;", "the instruction is not known"),
    ("cvt.rn.f64.f32 %rd3, %r4;", "the instruction is not known"),
    ("ld.global.ca.b32 %r3, [%rd1];", "the instruction is not known"),
    ("ld.volatile.global.b32 %r3, [%rd1];", "the instruction is not known"),
    ("st.param.b32 [in], %r3;", "the operands are not those of the instruction"),
    ("mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%r3}, {%r3}, {%r3}, {%r3};", "the instruction is not known"),
    (
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%r3}, %rd3, %rd4, %p1, 1, 1, 0, 0;",
        "the instruction is not known",
    ),
    ("setmaxnreg.inc.sync.aligned.u32 250;", "the operands are not those of the instruction"),
    ("cp.async.cg.shared.global [%rd3], [%rd1], 8;", "the operands are not those of the instruction"),
    ("mbarrier.arrive.shared::cta.b64 %rd3, [%rd1];", "the instruction is not known"),
    ("atom.global.add.f16 %rs1, [%rd1], %rs2;", "the instruction is not known"),
    ("activemask.b32 %r3;", "the instruction is not known"),
    ("add.s64 %rd3, %r4, %rd5;", "a register of 32 bits for one of 64"),
    ("add.s32 %r3, %r4, %r500;", "`%r500` is not declared"),
    ("add.s32 %x, %r4, %r5;", "`%x` is not a declared register"),
    ("bra NOWHERE;", "there is no label `NOWHERE`"),
    ("{ INNER: } bra INNER;", "there is no label `INNER`"),
    ("{ .reg .b32 t; } mov.b32 t, 0;", "`t` is not a declared register"),
    ("mov.u32 %r3, %clock;", "`%clock` is not declared"),
    (".pragma \"unroll\";", "the pragma \"unroll\" is not known"),
    (".pragma \"nounroll;", "a text without an end"),
    (".global .b32 table[4];", "the directive `.global` is not known"),
    ("mov.b32 %r3, 1", "Word(\"ret\") in place of `,`"),
];

#[test]
fn what_is_not_known_is_quoted() {
    for (body, words) in UNREADABLE {
        let fault = Module::parse(&entry(body)).map(drop).expect_err(body).to_string();
        assert!(fault.contains(words), "{body}: {fault}");
    }
    let fault = Module::parse(".version 8.0\n.func f()\n").map(drop).unwrap_err().to_string();
    assert_eq!(fault, "line 2 `.func f()`: the directive `.func` is not known");
}

/// Bodies for two warps of 64 threads on 64 bytes of input and 256 of output, and words of the error.
const FAILING: &[(&str, &str)] = &[
    ("ld.global.nc.b32 %r3, [%rd1+64];", "4 bytes at 64 of argument 0, which has 64"),
    ("ld.global.nc.b32 %r3, [%rd1+-4];", "4 bytes at -4 of argument 0"),
    ("ld.global.nc.v4.b32 {%r3, %r4, %r5, %r6}, [%rd1+8];", "is no multiple of 16"),
    ("ld.global.nc.b64 %rd3, [%rd1+4];", "is no multiple of 8"),
    ("mov.b64 %rd3, 0;\nld.global.b32 %r3, [%rd3];", "is in no argument"),
    ("st.global.b32 [%rd1], %r3;", "argument 0 is only to be read"),
    ("mov.b64 %rd3, sh;\nld.shared.b32 %r3, [%rd3];", "byte 1024 of shared memory was never written"),
    (
        "mov.b64 %rd3, sh;\nst.shared.b32 [%rd3+16384], %r3;",
        "4 bytes at 17408 of memory that has those from 1024 to 17408",
    ),
    ("mov.b64 %rd3, sh;\nst.shared.b32 [%rd3+-4], %r3;", "4 bytes at 1020 of memory"),
    (".local .align 8 .b8 l[8];\nmov.b64 %rd3, l;\nld.local.b32 %r3, [%rd3];", "was never written"),
    ("mov.b64 %rd3, sh;\nst.shared.b32 [%rd3], %r1;", "byte 1024 of shared memory: a race with thread"),
    ("st.global.b32 [%rd2], %r1;", "byte 0 of argument 1: a race with thread"),
    (
        "ld.global.b32 %r3, [%rd2];\nsetp.eq.u32 %p1, %r1, 3;\n@%p1 st.global.b32 [%rd2], %r1;",
        "byte 0 of argument 1: a race with thread",
    ),
    ("setp.eq.u32 %p1, %r1, 3;\n@%p1 st.global.b32 [%rd2], %r2;", "a race with another block"),
    (
        "setp.eq.u32 %p1, %r1, 3;\n@%p1 st.global.b32 [%rd2], %r2;\nld.global.nc.b32 %r3, [%rd2];",
        "read past the nearest cache",
    ),
    ("setp.lt.u32 %p1, %r1, 40;\n@%p1 bar.sync 0;", "threads wait for ever"),
    ("setp.lt.u32 %p1, %r1, 40;\n@%p1 bar.sync 1, 32;", "barrier 1"),
    (
        "setp.eq.u32 %p1, %r1, 40;\n@%p1 bra OUT;\nbar.sync 0;\nOUT:",
        "threads wait for ever: 63 threads for barrier 0 around line",
    ),
    ("bar.sync 16;", "barrier 16 for 64 threads"),
    ("bar.sync 0, 40;", "barrier 0 for 40 threads"),
    (
        "setp.lt.u32 %p1, %r1, 5;\n@%p1 shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\n@!%p1 bar.sync 0;",
        "threads wait for ever",
    ),
    ("setp.lt.u32 %p1, %r1, 5;\n@%p1 shfl.sync.bfly.b32 %r3, %r1, 8, 31, -1;", "the value of thread"),
    ("setp.lt.u32 %p1, %r1, 5;\n@%p1 bar.warp.sync 3;", "members 0x3 that are not those of every thread"),
    (
        "and.b32 %r3, %r1, 31;\nsetp.lt.u32 %p1, %r3, 5;\n@%p1 bra OUT;\nmov.b64 %rd3, sh;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%rd3];\nOUT:",
        "threads wait for ever",
    ),
    ("div.s32 %r3, %r1, %r2;", "a quotient that has no meaning"),
    ("mov.b64 %rd3, sh;\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%rd3], 0;", "is used as a barrier, or as none"),
    (
        "setp.eq.u32 %p1, %r1, 0;\nmov.b64 %rd3, sh;\n@%p1 mbarrier.init.shared::cta.b64 [%rd3], 1;\nbar.sync 0;\nst.shared.b32 [%rd3], %r1;",
        "is used as a barrier, or as none",
    ),
    (
        "setp.eq.u32 %p1, %r1, 0;\nmov.b64 %rd3, sh;\n@%p1 mbarrier.init.shared::cta.b64 [%rd3], 1;\n\
      mbarrier.arrive.shared::cta.b64 _, [%rd3];",
        "shared memory",
    ),
    (
        "setp.eq.u32 %p1, %r1, 0;\nmov.b64 %rd3, sh;\n@%p1 mbarrier.init.shared::cta.b64 [%rd3], 70;\nbar.sync 0;\n\
      mbarrier.arrive.shared::cta.b64 _, [%rd3];\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%rd3], 0;\n@!%p1 bra AGAIN;",
        "threads wait for ever: 64 threads for the barrier at 1024 around line",
    ),
    (
        "setp.eq.u32 %p1, %r1, 0;\nmov.b64 %rd3, sh;\n@%p1 mbarrier.init.shared::cta.b64 [%rd3], 64;\nbar.sync 0;\n\
      mbarrier.arrive.shared::cta.b64 _, [%rd3], 2;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%rd3], 33;",
        "arrivals where",
    ),
    ("wgmma.fence.sync.aligned;", "a group of warps that is not whole"),
];

#[test]
fn what_goes_wrong_in_a_launch_is_named() {
    for (body, words) in FAILING {
        for seed in 0..4 {
            let fault = run(body, launch(2, 64, seed), &[0; 64], 256).expect_err(body).to_string();
            assert!(fault.starts_with("entry k, line ") && fault.contains(words), "{body}: {fault}");
        }
    }
    let fault = run("bra AWAY;\nAWAY:\nst.global.b32 [%rd2+4], %r1;", launch(1, 64, 0), &[0; 64], 4).unwrap_err();
    let place = fault.thread.unwrap();
    assert_eq!(
        fault.to_string(),
        format!(
            "entry k, line 21 `st.global.b32 [%rd2+4], %r1;`, block 0, thread {}: 4 bytes at 4 of argument 1, which has 4",
            place.1
        )
    );
}

/// A race between threads of a warp is one, though they may execute in step; a barrier of the warp orders them.
#[test]
fn warps_are_not_ordered_by_themselves() {
    let body = |between: &str| {
        format!(
            "{OWN_WORD}mov.b64 %rd4, sh;\nmul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd4, %rd4, %rd5;\nst.shared.b32 [%rd4], %r1;\n\
             {between}setp.eq.u32 %p1, %r1, 7;\n@!%p1 bra OUT;\nld.shared.b32 %r4, [%rd4+4];\nst.global.b32 [%rd3], %r4;\nOUT:\n"
        )
    };
    for seed in 0..8 {
        // An exchange of values orders no memory.
        for between in ["", "shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\n"] {
            let fault = run(&body(between), launch(1, 32, seed), &[0; 16], 128).unwrap_err().to_string();
            assert!(fault.contains("a race with thread") || fault.contains("was never written"), "{fault}");
        }
        run(&body("bar.warp.sync -1;\n"), launch(1, 32, seed), &[0; 16], 128).unwrap();
    }
}
