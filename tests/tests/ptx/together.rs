//! Threads together: memory they share, barriers, exchanges between threads of a warp.

use super::{OWN_WORD, bytes, entry, launch, run, words};
use tensorc_tests::ptx::{Argument, Launch, Module};

#[test]
fn memory_of_every_kind_keeps_values() {
    let body = format!(
        "{OWN_WORD}.reg .b64 %l;\n.local .align 16 .b8 own[32];\nmov.b64 %l, own;\ncvta.local.u64 %rd4, %l;\n\
         mov.b64 %rd5, sh;\nmul.wide.u32 %rd6, %r1, 16;\nadd.s64 %rd5, %rd5, %rd6;\n\
         add.s64 %rd6, %rd6, %rd1;\nld.global.nc.v2.b32 {{%r3, %r4}}, [%rd6];\nld.global.nc.s8 %r5, [%rd6+8];\n\
         ld.global.nc.u8 %r6, [%rd6+8];\nst.shared.v4.b32 [%rd5], {{%r3, %r4, %r5, %r6}};\n\
         ld.shared.v4.b32 {{%r7, %r8, %r9, %r10}}, [%rd5];\nst.local.b64 [%l+8], %rd6;\nst.b32 [%rd4], %r8;\n\
         st.local.b32 [%l+4], %r9;\nld.local.v2.b32 {{%r8, %r9}}, [%l];\n\
         add.s32 %r7, %r7, %r8;\nadd.s32 %r7, %r7, %r9;\nadd.s32 %r7, %r7, %r10;\nst.global.b32 [%rd3], %r7;"
    );
    let input: Vec<u8> = bytes(&[1u32, 2, 0xff, 0, 10, 20, 7, 0], u32::to_le_bytes);
    // 1 + 2 - 1 + 255 and 10 + 20 + 7 + 7.
    assert_eq!(words(&run(&body, launch(1, 2, 5), &input, 8).unwrap()), [257, 44]);
}

/// Whatever the order of threads: what is written before a barrier is seen behind it.
#[test]
fn barriers_order_shared_memory() {
    let turn = "mov.b64 %rd4, sh;\nmul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd4, %rd5;\nst.shared.b32 [%rd6], %r1;\n";
    let body = |barrier: &str| {
        format!(
            "{OWN_WORD}{turn}{barrier}xor.b32 %r3, %r1, 77;\nmul.wide.u32 %rd5, %r3, 4;\nadd.s64 %rd6, %rd4, %rd5;\n\
             ld.shared.b32 %r4, [%rd6];\nst.global.b32 [%rd3], %r4;"
        )
    };
    let expected: Vec<u32> = (0..128).map(|t| t ^ 77).collect();
    for seed in 0..20 {
        for barrier in ["bar.sync 0;\n", "barrier.cta.sync.aligned 3, 128;\n", "barrier.sync 1;\n"] {
            assert_eq!(words(&run(&body(barrier), launch(1, 128, seed), &[0; 16], 512).unwrap()), expected);
        }
    }
}

/// Two warps wait for each other by one barrier, other two by another; one only says that it has come.
#[test]
fn barriers_for_some_threads() {
    let body = |first: &str| {
        format!(
            "{OWN_WORD}mov.b64 %rd4, sh;\nadd.s64 %rd6, %rd3, %rd4;\nsub.s64 %rd6, %rd6, %rd2;\nshr.u32 %r3, %r1, 6;\n\
             add.s32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 bra FIRST;\nbar.sync %r3, 64;\n\
             xor.b32 %r5, %r1, 32;\nst.shared.b32 [%rd6], %r5;\nst.global.b32 [%rd3], %r5;\nbra END;\n\
             FIRST:\n{first}st.global.b32 [%rd3], %r1;\nEND:\n"
        )
    };
    for seed in 0..10 {
        let found = words(&run(&body("bar.arrive 1, 64;\n"), launch(1, 128, seed), &[0; 16], 512).unwrap());
        assert!(found[..32].iter().copied().eq(0..32) && found[32] == 0 && found[96] == 64);
    }
    let fault = run(&body(""), launch(1, 128, 0), &[0; 16], 512).unwrap_err().to_string();
    assert!(fault.contains("threads wait for ever: 32 threads for barrier 1 around line"), "{fault}");
}

fn exchanged(instruction: &str) -> Vec<u32> {
    let body = format!("{OWN_WORD}add.s32 %r3, %r1, 100;\n{instruction}\nst.global.b32 [%rd3], %r4;");
    words(&run(&body, launch(1, 32, 9), &[0; 16], 128).unwrap())
}

#[test]
fn threads_of_a_warp_exchange_values() {
    let of = |f: &dyn Fn(u32) -> u32| (0..32).map(f).collect::<Vec<u32>>();
    assert_eq!(exchanged("shfl.sync.bfly.b32 %r4, %r3, 16, 31, -1;"), of(&|t| 100 + (t ^ 16)));
    assert_eq!(exchanged("shfl.sync.up.b32 %r4, %r3, 3, 0, -1;"), of(&|t| 100 + if t >= 3 { t - 3 } else { t }));
    assert_eq!(exchanged("shfl.sync.down.b32 %r4, %r3, 3, 31, -1;"), of(&|t| 100 + if t < 29 { t + 3 } else { t }));
    // Within eighths: the mask of the upper bits stands in bits 8 to 12.
    assert_eq!(exchanged("shfl.sync.idx.b32 %r4, %r3, 2, 0x181f, -1;"), of(&|t| 100 + t / 8 * 8 + 2));
    let inside = exchanged("shfl.sync.down.b32 %r4|%p1, %r3, 3, 31, -1;\nselp.b32 %r4, 1, 0, %p1;");
    assert_eq!(inside, of(&|t| u32::from(t < 29)));
    assert_eq!(exchanged("setp.lt.u32 %p1, %r1, 5;\nvote.sync.ballot.b32 %r4, %p1, -1;"), of(&|_| 31));
    let any = exchanged("setp.eq.u32 %p1, %r1, 5;\nvote.sync.any.pred %p2, %p1, -1;\nselp.b32 %r4, 1, 0, %p2;");
    assert_eq!(any, of(&|_| 1));
    let all = exchanged("setp.eq.u32 %p1, %r1, 5;\nvote.sync.all.pred %p2, %p1, -1;\nselp.b32 %r4, 1, 0, %p2;");
    assert_eq!(all, of(&|_| 0));
    let elected = exchanged("elect.sync _|%p1, -1;\nselp.b32 %r4, 1, 0, %p1;");
    assert_eq!(elected.iter().sum::<u32>(), 1);
}

/// Half of a warp does something else in between.
#[test]
fn warps_part_and_meet() {
    let body = format!(
        "{OWN_WORD}and.b32 %r3, %r1, 1;\nsetp.eq.b32 %p1, %r3, 0;\n@%p1 bra EVEN;\nmov.b32 %r4, 0;\nLOOP:\n\
         add.s32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, %r1;\n@%p2 bra LOOP;\nbra.uni BOTH;\nEVEN:\nmov.b32 %r4, 1000;\nBOTH:\n\
         shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1;\nst.global.b32 [%rd3], %r5;"
    );
    let found = words(&run(&body, launch(1, 64, 2), &[0; 16], 256).unwrap());
    let expected: Vec<u32> = (0..64).map(|t| if t % 2 == 0 { t + 1 } else { 1000 }).collect();
    assert_eq!(found, expected);
}

#[test]
fn atomic_operations_do_not_race() {
    let body = "mov.b32 %r3, 3;\nred.global.add.u32 [%rd2], %r3;\natom.global.max.u32 %r4, [%rd2+4], %r1;\n\
                atom.global.exch.b32 %r4, [%rd2+8], 5;\natom.global.cas.b32 %r4, [%rd2+12], 0xeeeeeeee, %r2;\n\
                mov.b64 %rd4, sh;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.b32 [%rd4], 0;\nbar.sync 0;\n\
                atom.shared.add.u32 %r5, [%rd4], 1;\nbar.sync 0;\nld.shared.b32 %r5, [%rd4];\n\
                red.relaxed.gpu.global.min.u32 [%rd2+16], %r5;";
    let before = 0xeeee_eeeeu32;
    let found = words(&run(body, launch(3, 40, 4), &[0; 16], 20).unwrap());
    assert_eq!(found[..3], [before.wrapping_add(3 * 3 * 40), before, 5]);
    assert!(found[3] < 3 && found[4] == 40);
}

#[test]
fn copies_come_when_they_are_awaited() {
    let body = |wait: &str| {
        format!(
            "{OWN_WORD}mov.b64 %rd4, sh;\nmul.wide.u32 %rd5, %r1, 16;\nadd.s64 %rd6, %rd4, %rd5;\nadd.s64 %rd7, %rd1, %rd5;\n\
             cp.async.cg.shared.global [%rd6], [%rd7], 16;\ncp.async.commit_group;\nmov.b32 %r3, 4;\n\
             cp.async.ca.shared.global [%rd6+1024], [%rd7], 8, %r3;\ncp.async.commit_group;\n{wait}\
             ld.shared.b32 %r4, [%rd6];\ncp.async.wait_group 0;\nld.shared.v2.b32 {{%r5, %r6}}, [%rd6+1024];\n\
             add.s32 %r4, %r4, %r5;\nadd.s32 %r4, %r4, %r6;\nst.global.b32 [%rd3], %r4;"
        )
    };
    let input = bytes(&(0..128u32).collect::<Vec<_>>(), u32::to_le_bytes);
    // The second element of the second copy is zero.
    let expected: Vec<u32> = (0..32).map(|t| 2 * (4 * t)).collect();
    assert_eq!(words(&run(&body("cp.async.wait_group 1;\n"), launch(1, 32, 1), &input, 128).unwrap()), expected);
    let fault = run(&body("cp.async.wait_group 2;\n"), launch(1, 32, 1), &input, 128).unwrap_err().to_string();
    assert!(fault.contains("a copy to it is not awaited"), "{fault}");
}

/// Numbers are parameters, too, and modules have several entries.
#[test]
fn parameters_and_entries() {
    let second = ".visible .entry l(.param .u32 n, .param .u64 to, .param .f32 x)\n{\n.reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n\
                  ld.param.u32 %r1, [n];\nld.param.b64 %rd1, [to];\nld.param.b32 %r2, [x];\n\
                  st.global.v2.b32 [%rd1], {%r1, %r2};\nret;\n}\n";
    let module = Module::parse(&(entry("") + second)).unwrap();
    assert!(module.has_entry("k") && module.has_entry("l") && !module.has_entry("m"));
    assert_eq!(module.target(), "sm_90a");
    let mut output = vec![0; 8];
    let mut arguments =
        [Argument::Number(7), Argument::Buffer { bytes: &mut output, writable: true }, Argument::Number(0x3f80_0000)];
    let one = Launch { blocks: 1, threads: 1, shared_bytes: 0, seed: 0 };
    let steps = module.launch("l", one, &mut arguments).unwrap();
    assert_eq!((steps, words(&output)), (5, vec![7, 0x3f80_0000]));
    let fault = module.launch("m", one, &mut []).unwrap_err().to_string();
    assert_eq!(fault, "entry m, line 0: there is no such entry");
    let fault = module.launch("l", one, &mut []).unwrap_err().to_string();
    assert_eq!(fault, "entry l, line 0: 0 arguments for 3 parameters");
}
