//! What instructions of one thread compute.

use super::{launch, run};

/// Bits of a result and of operands, the operands, and the result.
type Case = (&'static str, u32, &'static [(u32, u64)], u64);

const NAN: u64 = 0x7fff_ffff;
const ONE: u64 = 0x3f80_0000;
const TWO: u64 = 0x4000_0000;
const HALF: u64 = 0x3f00_0000;
const INFINITY: u64 = 0x7f80_0000;
const MINUS: u64 = 0x8000_0000;

const INTEGERS: &[Case] = &[
    ("add.s32", 32, &[(32, 0xffff_ffff), (32, 2)], 1),
    ("add.s64", 64, &[(64, u64::MAX), (64, 2)], 1),
    ("add.s16", 16, &[(16, 0xffff), (16, 3)], 2),
    ("sub.s32", 32, &[(32, 1), (32, 2)], 0xffff_ffff),
    ("sub.s64", 64, &[(64, 1), (64, 2)], u64::MAX),
    ("mul.lo.s32", 32, &[(32, 0x1_0001), (32, 0x1_0001)], 0x2_0001),
    ("mul.lo.s64", 64, &[(64, 1 << 40), (64, 1 << 30)], 0),
    ("mul.hi.u32", 32, &[(32, 0xffff_ffff), (32, 0xffff_ffff)], 0xffff_fffe),
    ("mul.hi.s32", 32, &[(32, 0xffff_ffff), (32, 2)], 0xffff_ffff),
    ("mul.hi.u64", 64, &[(64, 1 << 63), (64, 6)], 3),
    ("mul.hi.s64", 64, &[(64, u64::MAX), (64, 6)], u64::MAX),
    ("mul.wide.u32", 64, &[(32, 0xffff_ffff), (32, 2)], 0x1_ffff_fffe),
    ("mul.wide.s32", 64, &[(32, 0xffff_ffff), (32, 2)], u64::MAX - 1),
    ("mul.wide.u16", 32, &[(16, 0xffff), (16, 0xffff)], 0xfffe_0001),
    ("mul.wide.s16", 32, &[(16, 0xffff), (16, 5)], 0xffff_fffb),
    ("mad.lo.s32", 32, &[(32, 7), (32, 0xffff_ffff), (32, 10)], 3),
    ("mad.lo.s64", 64, &[(64, 1 << 33), (64, 5), (64, 1)], (5 << 33) + 1),
    ("mad.lo.s16", 16, &[(16, 300), (16, 300), (16, 1)], 24465),
    ("mad.wide.u32", 64, &[(32, 1 << 31), (32, 4), (64, 5)], (1 << 33) + 5),
    ("mad.wide.s32", 64, &[(32, 0xffff_ffff), (32, 4), (64, 5)], 1),
    ("div.s32", 32, &[(32, 0xffff_fff9), (32, 2)], 0xffff_fffd),
    ("div.u32", 32, &[(32, 0xffff_fff9), (32, 2)], 0x7fff_fffc),
    ("rem.s32", 32, &[(32, 0xffff_fff9), (32, 2)], 0xffff_ffff),
    ("rem.u64", 64, &[(64, u64::MAX), (64, 10)], 5),
    ("div.s64", 64, &[(64, u64::MAX - 6), (64, 2)], u64::MAX - 2),
    ("min.s32", 32, &[(32, 0xffff_ffff), (32, 1)], 0xffff_ffff),
    ("min.u32", 32, &[(32, 0xffff_ffff), (32, 1)], 1),
    ("max.s64", 64, &[(64, u64::MAX), (64, 1)], 1),
    ("max.u64", 64, &[(64, u64::MAX), (64, 1)], u64::MAX),
    ("max.s16", 16, &[(16, 0x8000), (16, 3)], 3),
    ("abs.s32", 32, &[(32, 0xffff_fffd)], 3),
    ("abs.s16", 16, &[(16, 0xfffd)], 3),
    ("neg.s32", 32, &[(32, 1)], 0xffff_ffff),
    ("neg.s64", 64, &[(64, 1)], u64::MAX),
    ("not.b32", 32, &[(32, 0xf0)], 0xffff_ff0f),
    ("not.b64", 64, &[(64, 0)], u64::MAX),
    ("and.b32", 32, &[(32, 0xff0), (32, 0x3c)], 0x30),
    ("or.b64", 64, &[(64, 1 << 40), (64, 2)], 1 << 40 | 2),
    ("xor.b16", 16, &[(16, 0xff), (16, 0xf0)], 0xf),
    ("shl.b32", 32, &[(32, 3), (32, 31)], 0x8000_0000),
    ("shl.b32", 32, &[(32, 3), (32, 32)], 0),
    ("shl.b64", 64, &[(64, 3), (32, 63)], 1 << 63),
    ("shl.b16", 16, &[(16, 3), (32, 15)], 0x8000),
    ("shr.u32", 32, &[(32, 0x8000_0000), (32, 31)], 1),
    ("shr.u32", 32, &[(32, 0x8000_0000), (32, 400)], 0),
    ("shr.s32", 32, &[(32, 0x8000_0000), (32, 400)], 0xffff_ffff),
    ("shr.s64", 64, &[(64, 1 << 63), (32, 62)], u64::MAX - 1),
    ("bfe.u32", 32, &[(32, 0xabcd), (32, 4), (32, 8)], 0xbc),
    ("bfe.s32", 32, &[(32, 0xabcd), (32, 4), (32, 8)], 0xffff_ffbc),
    ("bfe.s32", 32, &[(32, 0x8000_0000), (32, 28), (32, 9)], 0xffff_fff8),
    ("bfe.s32", 32, &[(32, 0x8000_0000), (32, 40), (32, 1)], 0xffff_ffff),
    ("bfe.u32", 32, &[(32, 0xffff_ffff), (32, 40), (32, 1)], 0),
    ("bfe.s32", 32, &[(32, 0xffff_ffff), (32, 4), (32, 0)], 0),
    ("bfe.u64", 64, &[(64, 0xab << 40), (32, 40), (32, 8)], 0xab),
    ("bfe.s64", 64, &[(64, 0xab << 40), (32, 40), (32, 8)], 0xffff_ffff_ffff_ffab),
    ("bfi.b32", 32, &[(32, 0xff), (32, 0), (32, 4), (32, 4)], 0xf0),
    ("bfi.b32", 32, &[(32, 0xff), (32, 7), (32, 32), (32, 4)], 7),
    ("popc.b32", 32, &[(32, 0xf0f0)], 8),
    ("popc.b64", 32, &[(64, u64::MAX)], 64),
    ("clz.b32", 32, &[(32, 1)], 31),
    ("clz.b64", 32, &[(64, 1)], 63),
    ("brev.b32", 32, &[(32, 1)], 0x8000_0000),
    ("bfind.u32", 32, &[(32, 0x100)], 8),
    ("bfind.u32", 32, &[(32, 0)], 0xffff_ffff),
    ("bfind.s32", 32, &[(32, 0xffff_fff0)], 3),
    ("prmt.b32", 32, &[(32, 0x3322_1100), (32, 0x7766_5544), (32, 0x7130)], 0x7711_3300),
    ("prmt.b32", 32, &[(32, 0x80), (32, 0x7f00), (32, 0x11d8)], 0xff),
    ("shf.l.wrap.b32", 32, &[(32, 0x8000_0000), (32, 1), (32, 33)], 3),
    ("shf.r.wrap.b32", 32, &[(32, 0x8000_0000), (32, 1), (32, 4)], 0x1800_0000),
    ("shf.l.clamp.b32", 32, &[(32, 5), (32, 1), (32, 77)], 5),
    ("shf.r.clamp.b32", 32, &[(32, 5), (32, 1), (32, 77)], 1),
    ("add.s16x2", 32, &[(32, 0xffff_0001), (32, 0x0002_ffff)], 0x0001_0000),
    ("min.s16x2", 32, &[(32, 0xffff_0001), (32, 0x0002_ffff)], 0xffff_ffff),
    ("max.u16x2", 32, &[(32, 0xffff_0001), (32, 0x0002_ffff)], 0xffff_ffff),
    ("selp.b32", 32, &[(32, 5), (32, 6), (1, 1)], 5),
    ("selp.b64", 64, &[(64, 5), (64, 6), (1, 0)], 6),
    ("and.pred", 1, &[(1, 1), (1, 0)], 0),
    ("xor.pred", 1, &[(1, 1), (1, 0)], 1),
];

const FLOATS: &[Case] = &[
    ("add.rn.f32", 32, &[(32, ONE), (32, ONE)], TWO),
    // 1 + 2^-24 is halfway: to even.
    ("add.rn.f32", 32, &[(32, ONE), (32, 0x3380_0000)], ONE),
    ("add.rn.f32", 32, &[(32, INFINITY), (32, INFINITY | MINUS)], NAN),
    ("add.rn.f32", 32, &[(32, 1), (32, 1)], 2),
    ("add.rn.ftz.f32", 32, &[(32, 1), (32, 1)], 0),
    ("sub.rn.f32", 32, &[(32, ONE), (32, ONE)], 0),
    ("mul.rn.f32", 32, &[(32, HALF), (32, TWO)], ONE),
    ("mul.rn.ftz.f32", 32, &[(32, 0x0080_0000), (32, HALF | MINUS)], MINUS),
    ("mul.rn.f32", 32, &[(32, 0xffc1_2345), (32, ONE)], NAN),
    // (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24, lost without a fused product.
    ("fma.rn.f32", 32, &[(32, 0x3f80_0800), (32, 0x3f80_0800), (32, 0xbf80_1000)], 0x3380_0000),
    ("fma.rn.f64", 64, &[(64, 0x4000_0000_0000_0000), (64, 0x4000_0000_0000_0000), (64, 0)], 0x4010_0000_0000_0000),
    ("div.rn.f32", 32, &[(32, ONE), (32, 0x4040_0000)], 0x3eaa_aaab),
    ("rcp.rn.f32", 32, &[(32, 0x4040_0000)], 0x3eaa_aaab),
    ("sqrt.rn.f32", 32, &[(32, TWO)], 0x3fb5_04f3),
    ("sqrt.rn.f32", 32, &[(32, ONE | MINUS)], NAN),
    ("abs.f32", 32, &[(32, ONE | MINUS)], ONE),
    ("neg.f32", 32, &[(32, 0)], MINUS),
    ("min.f32", 32, &[(32, 0), (32, MINUS)], MINUS),
    ("max.f32", 32, &[(32, MINUS), (32, 0)], 0),
    ("max.f32", 32, &[(32, NAN), (32, ONE)], ONE),
    ("max.f32", 32, &[(32, 0xffc1_2345), (32, NAN)], NAN),
    ("max.NaN.f32", 32, &[(32, 0xffc1_2345), (32, ONE)], NAN),
    ("min.NaN.f32", 32, &[(32, TWO), (32, ONE)], ONE),
    ("copysign.f32", 32, &[(32, MINUS), (32, ONE)], ONE | MINUS),
    ("setp.lt.f32", 1, &[(32, ONE), (32, NAN)], 0),
    ("setp.ltu.f32", 1, &[(32, ONE), (32, NAN)], 1),
    ("setp.ne.f32", 1, &[(32, ONE), (32, NAN)], 0),
    ("setp.neu.f32", 1, &[(32, ONE), (32, NAN)], 1),
    ("setp.eq.f32", 1, &[(32, 0), (32, MINUS)], 1),
    ("setp.nan.f32", 1, &[(32, ONE), (32, NAN)], 1),
    ("setp.num.f32", 1, &[(32, ONE), (32, NAN)], 0),
    ("setp.gt.f64", 1, &[(64, 0x4000_0000_0000_0000), (64, 0x3ff0_0000_0000_0000)], 1),
    ("setp.lt.s32", 1, &[(32, 0xffff_ffff), (32, 0)], 1),
    ("setp.lt.u32", 1, &[(32, 0xffff_ffff), (32, 0)], 0),
    ("setp.hi.u32", 1, &[(32, 0xffff_ffff), (32, 0)], 1),
    ("setp.ge.u64", 1, &[(64, 5), (64, 5)], 1),
    ("setp.gt.s16", 1, &[(16, 0xffff), (16, 0)], 0),
    // 2048 + 1 is halfway between f16's 2048 and 2050.
    ("add.rn.f16", 16, &[(16, 0x6800), (16, 0x3c00)], 0x6800),
    ("add.rn.f16", 16, &[(16, 0x7bff), (16, 0x7bff)], 0x7c00),
    ("mul.rn.f16", 16, &[(16, 0x0001), (16, 0x3800)], 0),
    ("sub.rn.f16x2", 32, &[(32, 0x4000_3c00), (32, 0x3c00_3c00)], 0x3c00_0000),
    ("abs.f16x2", 32, &[(32, 0xbc00_3c00)], 0x3c00_3c00),
    ("neg.f16", 16, &[(16, 0x3c00)], 0xbc00),
    ("max.NaN.f16", 16, &[(16, 0x7e01), (16, 0x3c00)], 0x7fff),
    ("setp.lt.f16", 1, &[(16, 0x3c00), (16, 0x4000)], 1),
    // 1 + 2^-11 + 2^-30: more than halfway.
    ("fma.rn.f16", 16, &[(16, 0x1001), (16, 0x3c00), (16, 0x3c00)], 0x3c01),
    // 256 + 1 is halfway between bf16's 256 and 258, 1 + 2^-7 is more.
    ("add.rn.bf16", 16, &[(16, 0x4380), (16, 0x3f80)], 0x4380),
    ("fma.rn.bf16", 16, &[(16, 0x3f81), (16, 0x3f80), (16, 0x4380)], 0x4381),
    ("ex2.approx.ftz.f32", 32, &[(32, TWO)], 0x4080_0000),
    ("lg2.approx.f32", 32, &[(32, 0x4080_0000)], TWO),
    ("rsqrt.approx.f32", 32, &[(32, 0x4080_0000)], HALF),
    ("rcp.approx.ftz.f32", 32, &[(32, TWO)], HALF),
    ("tanh.approx.f32", 32, &[(32, 0)], 0),
    ("min.f64", 64, &[(64, 0x7ff8_0000_0000_0001), (64, 0x3ff0_0000_0000_0000)], 0x3ff0_0000_0000_0000),
    ("div.rn.f64", 64, &[(64, 0x3ff0_0000_0000_0000), (64, 0x4008_0000_0000_0000)], 0x3fd5_5555_5555_5555),
];

const CONVERSIONS: &[Case] = &[
    ("cvt.u64.u32", 64, &[(32, 0xffff_ffff)], 0xffff_ffff),
    ("cvt.s64.s32", 64, &[(32, 0xffff_ffff)], u64::MAX),
    ("cvt.u32.u64", 32, &[(64, 0x12_3456_789a)], 0x3456_789a),
    ("cvt.u16.u32", 16, &[(32, 0x1_2345)], 0x2345),
    ("cvt.u32.u16", 32, &[(16, 0xffff)], 0xffff),
    ("cvt.s16.s8", 16, &[(16, 0x1280)], 0xff80),
    ("cvt.s8.s32", 16, &[(32, 0x1280)], 0xff80),
    ("cvt.u8.u32", 16, &[(32, 0x1280)], 0x80),
    ("cvt.sat.s8.s32", 16, &[(32, 1000)], 127),
    ("cvt.sat.u8.s32", 16, &[(32, 0xffff_ffff)], 0),
    ("cvt.rn.f32.s32", 32, &[(32, 0xffff_ffff)], ONE | MINUS),
    ("cvt.rn.f32.u32", 32, &[(32, 0xffff_ffff)], 0x4f80_0000),
    ("cvt.rn.f32.u64", 32, &[(64, (1 << 40) + 1)], 0x5380_0000),
    ("cvt.rn.f64.s64", 64, &[(64, u64::MAX)], 0xbff0_0000_0000_0000),
    ("cvt.rn.f16.s32", 16, &[(32, 2049)], 0x6800),
    ("cvt.rzi.s32.f32", 32, &[(32, 0xbfc0_0000)], 0xffff_ffff),
    ("cvt.rni.s32.f32", 32, &[(32, 0x4020_0000)], 2),
    ("cvt.rmi.s32.f32", 32, &[(32, 0xbfc0_0000)], 0xffff_fffe),
    ("cvt.rpi.s32.f32", 32, &[(32, 0x3fc0_0000)], 2),
    ("cvt.rzi.s32.f32", 32, &[(32, 0x4f80_0000)], 0x7fff_ffff),
    ("cvt.rzi.u32.f32", 32, &[(32, ONE | MINUS)], 0),
    ("cvt.rzi.s32.f32", 32, &[(32, NAN)], 0),
    ("cvt.rzi.s64.f32", 64, &[(32, NAN)], 1 << 63),
    ("cvt.rzi.s32.f64", 32, &[(64, 0x7ff8_0000_0000_0000)], 1 << 31),
    ("cvt.rzi.u64.f64", 64, &[(64, 0x43f0_0000_0000_0000)], u64::MAX),
    ("cvt.rzi.s8.f32", 16, &[(32, 0x4348_0000)], 127),
    ("cvt.rni.f32.f32", 32, &[(32, 0x4020_0000)], TWO),
    ("cvt.rmi.f32.f32", 32, &[(32, 0xbf00_0000)], ONE | MINUS),
    ("cvt.rpi.f64.f64", 64, &[(64, 0x3ff8_0000_0000_0000)], 0x4000_0000_0000_0000),
    ("cvt.rzi.f32.f32", 32, &[(32, 0xbf00_0000)], MINUS),
    ("cvt.f64.f32", 64, &[(32, ONE)], 0x3ff0_0000_0000_0000),
    ("cvt.rn.f32.f64", 32, &[(64, 0x3ff0_0000_1000_0000)], ONE),
    ("cvt.rn.f32.f64", 32, &[(64, 0x3ff0_0000_1000_0001)], ONE + 1),
    ("cvt.f32.f16", 32, &[(16, 0x0001)], 0x3380_0000),
    ("cvt.f32.f16", 32, &[(16, 0xfc00)], INFINITY | MINUS),
    ("cvt.f32.bf16", 32, &[(16, 0x4049)], 0x4049_0000),
    ("cvt.rn.f16.f32", 16, &[(32, 0x3f80_1000)], 0x3c00),
    ("cvt.rn.f16.f32", 16, &[(32, 0x3f80_1001)], 0x3c01),
    ("cvt.rn.f16.f32", 16, &[(32, 0x477f_f000)], 0x7c00),
    ("cvt.rn.f16.f32", 16, &[(32, 0x477f_efff)], 0x7bff),
    ("cvt.rn.f16.f32", 16, &[(32, 0x3300_0000)], 0),
    ("cvt.rn.f16.f32", 16, &[(32, 0x3300_0001)], 1),
    ("cvt.rn.bf16.f32", 16, &[(32, 0x3f81_8000)], 0x3f82),
    ("cvt.rn.f16x2.f32", 32, &[(32, ONE), (32, TWO)], 0x3c00_4000),
    ("cvt.rn.bf16x2.f32", 32, &[(32, ONE), (32, TWO)], 0x3f80_4000),
    ("cvt.rna.tf32.f32", 32, &[(32, 0x3f80_1000)], 0x3f80_2000),
    ("cvt.rna.tf32.f32", 32, &[(32, 0x3f80_0fff)], ONE),
];

fn register(bits: u32, number: usize) -> String {
    let class = match bits {
        1 => "%p",
        16 => "%rs",
        32 => "%r",
        _ => "%rd",
    };
    format!("{class}{}", number + 10)
}

/// Operands come from memory and as immediates, where there can be some.
fn check(cases: &[Case]) {
    for (opcode, bits, operands, expected) in cases {
        for immediate in [false, true] {
            let mut body = String::new();
            let mut names = vec![];
            for (i, (bits, value)) in operands.iter().enumerate() {
                let name = register(*bits, i);
                body += &match bits {
                    1 => format!("ld.global.nc.b32 %r9, [%rd1+{}];\nsetp.ne.b32 {name}, %r9, 0;\n", 8 * i),
                    _ => format!("ld.global.nc.b{bits} {name}, [%rd1+{}];\n", 8 * i),
                };
                let number = match opcode.rsplit('.').next() {
                    Some("f32") => format!("0f{value:08X}"),
                    Some("f64") => format!("0d{value:016X}"),
                    _ => value.to_string(),
                };
                names.push(if immediate && i > 0 && *bits > 1 { number } else { name });
            }
            let result = register(*bits, 9);
            body += &format!("{opcode} {result}, {};\n", names.join(", "));
            body += &match bits {
                1 => format!("selp.b32 %r9, 1, 0, {result};\ncvt.u64.u32 %rd9, %r9;\nst.global.b64 [%rd2], %rd9;"),
                64 => format!("st.global.b64 [%rd2], {result};"),
                _ => format!("cvt.u64.u{bits} %rd9, {result};\nst.global.b64 [%rd2], %rd9;"),
            };
            let input: Vec<u8> = operands.iter().flat_map(|(_, value)| value.to_le_bytes()).collect();
            let output = run(&body, launch(1, 1, 0), &input, 8).unwrap_or_else(|fault| panic!("{opcode}: {fault}"));
            let found = u64::from_le_bytes(output.try_into().unwrap());
            assert_eq!(found, *expected, "{opcode} of {operands:x?}: {found:#x}");
        }
    }
}

#[test]
fn integer_instructions() {
    check(INTEGERS);
}

#[test]
fn floating_point_instructions() {
    check(FLOATS);
}

#[test]
fn conversions() {
    check(CONVERSIONS);
}

#[test]
fn registers_are_joined_and_split() {
    let body = "mov.b32 %r10, 0x12345678;\nmov.b32 {%rs1, %rs2}, %r10;\nmov.b32 %r11, {%rs2, %rs1};\n\
                mov.b64 %rd10, {%r10, %r11};\n{ .reg .b32 tmp; mov.b64 {tmp, %r12}, %rd10; }\n\
                lop3.b32 %r13, %r10, %r11, %r12, 0x96;\nst.global.v4.b32 [%rd2], {%r10, %r11, %r12, %r13};";
    let output = run(body, launch(1, 1, 0), &[0; 16], 16).unwrap();
    // 0x96 is the parity of three bits.
    assert_eq!(super::words(&output), [0x1234_5678, 0x5678_1234, 0x5678_1234, 0x1234_5678]);
}

/// f32 of all kinds go to f16 and bf16 as the scalar interpreter rounds them.
#[test]
fn short_floats_agree_with_another_implementation() {
    let patterns: Vec<u32> = (0..4096u32).map(|i| i.wrapping_mul(0x9e37_79b9) ^ i << 20).collect();
    let input: Vec<u8> = patterns.iter().flat_map(|x| x.to_le_bytes()).collect();
    let body = "mul.wide.u32 %rd3, %r2, 1024;\nadd.s64 %rd3, %rd3, %rd1;\nmul.wide.u32 %rd4, %r1, 4;\n\
                add.s64 %rd3, %rd3, %rd4;\nld.global.nc.b32 %r10, [%rd3];\ncvt.rn.f16.f32 %rs1, %r10;\n\
                cvt.rn.bf16.f32 %rs2, %r10;\nsub.s64 %rd3, %rd3, %rd1;\nadd.s64 %rd3, %rd3, %rd2;\n\
                st.global.v2.b16 [%rd3], {%rs1, %rs2};";
    let output = run(body, launch(16, 256, 0), &input, input.len()).unwrap();
    for (x, halves) in patterns.iter().map(|x| f32::from_bits(*x)).zip(output.chunks_exact(4)) {
        let [f16, bf16] = [0, 2].map(|i| u16::from_le_bytes([halves[i], halves[i + 1]]));
        match x.is_nan() {
            true => assert_eq!((f16, bf16), (0x7fff, 0x7fff)),
            false => {
                use tensorc_ir::DType::{BF16, F16};
                use tensorc_ir::scalar::Scalar;
                let of = |to| Scalar::f32(x).cast(to).bits as u16;
                assert_eq!((f16, bf16), (of(F16), of(BF16)), "{x}");
            }
        }
    }
}
