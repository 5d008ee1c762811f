//! Codes of gradients: MXNet's bytes, values by hand, and that nothing is lost over time.

use half::{bf16, f16};
use proptest::prelude::*;
use tensorc_kvstore::Compression;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn encode(kind: Compression, gradient: &[f32], residual: &mut [f32]) -> Vec<u8> {
    let mut out = Vec::new();
    kind.encode(&bytes(gradient), residual, &mut out).unwrap();
    assert_eq!(out.len(), kind.encoded_len(gradient.len()));
    out
}

fn decode(kind: Compression, codes: &[u8], count: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; count];
    kind.decode_into(codes, &mut out).unwrap();
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Gradients of 37 values between -1.001 and 1.001.
fn gradient(step: i32) -> Vec<f32> {
    (0..37).map(|i| ((i * 7919 + step * 104_729) % 2003 - 1001) as f32 / 1000.0).collect()
}

/// The words and the last residual of six calls of `GradientCompression::Quantize` of MXNet 1.9.1 with [`gradient`].
#[test]
fn two_bit_codes_are_those_of_mxnet() {
    let half = [
        "bff000002aaffc0000000000",
        "80abff0000a028ffc0000000",
        "02200abf00000a008fc00000",
        "300002828bfc00c220000000",
        "2af3c0002820bff000000000",
        "0a00aff0000a80abff000000",
    ];
    let three_tenths = [
        "bfff000aaaaffff000800000",
        "80abffc00aa02afff0000000",
        "82a80abfcc200ac0afc00000",
        "ff0802b0abff0002ac000000",
        "aaffc080a822bfff0c000000",
        "8ac8affc0802b22bffc00000",
    ];
    let residual_of_half = concat!(
        "0881d5befea9f1bea0c2f5bc6039b4bd946e12bef0d24dbea79b84be9ac4a0beca76bebef628dcbe0ad7033fe6fbe93eba49cc3e",
        "c620b03e976e923ed878693e7e142e3e4060e53d302f5d3d001283baf2a971bdb29defbdc42030be20856bbebc7493be9ec4203e",
        "80c0ca3d0e02ebbe406065bcc07493bdb81e05bed8a3503f8095833ea8c64b3e30dd243fc820b03d5060e53c",
    );
    let residual_of_three_tenths = concat!(
        "44355ebe98438bbe15ae07bf5fba49bfd078693df4d24dbee8d022bed0225bbec82030bef628dcbe3d0a373fe6fbe93eb0c64b3e",
        "f853e33efad4f83ed878693e733d8a3ec09b443c64e77bbe8816993ea49b84be39355ebe94438bbe1c856bbe22dbf9bed878693d",
        "78c0ca3de4d022bed8225bbecc2030bef628dcbe3d0a373fbfca413fa6c64b3ef653e33efed4f83ed478693e",
    );
    for (threshold, codes, last) in [(0.5, half, residual_of_half), (0.3, three_tenths, residual_of_three_tenths)] {
        let mut residual = [0.0; 37];
        for (step, expected) in (0..).zip(codes) {
            assert_eq!(hex(&encode(Compression::TwoBit { threshold }, &gradient(step), &mut residual)), expected);
        }
        assert_eq!(hex(&bytes(&residual)), last);
    }
}

/// As MXNet 1.9.1: NaN and infinities stay in the residual, zeros of both signs send zero.
#[test]
fn special_values_are_those_of_mxnet() {
    let below = 0.5_f32.next_down();
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.5,
        -0.5,
        below,
        -below,
        -0.0,
        f32::from_bits(1),
        2.5,
        3e38,
        -3e38,
    ];
    let mut residual = [0.0; 12];
    let kind = Compression::TwoBit { threshold: 0.5 };
    for (codes, kept) in [
        ("3b803e00", [0, 0x3eff_ffff, 0xbeff_ffff, 0, 1, 0x4000_0000, 0x7f61_b1e6, 0xff61_b1e6]),
        ("3bb83e00", [0, 0x3eff_fffe, 0xbeff_fffe, 0, 2, 0x4080_0000, 0x7f80_0000, 0xff80_0000]),
        ("3bb83e00", [0, 0x3eff_fffc, 0xbeff_fffc, 0, 3, 0x40c0_0000, 0x7f80_0000, 0xff80_0000]),
    ] {
        assert_eq!(hex(&encode(kind, &special, &mut residual)), codes);
        assert!(residual[0].is_nan());
        assert_eq!(residual[1..3], [f32::INFINITY, f32::NEG_INFINITY]);
        let rest: Vec<_> = residual[4..].iter().map(|value| value.to_bits()).collect();
        assert_eq!(rest, kept);
    }
    let mut residual = [0.0; 3];
    let kind = Compression::OneBit { threshold: 0.0 };
    for _ in 0..2 {
        assert_eq!(encode(kind, &special[..3], &mut residual), [0x40, 0, 0, 0]);
        assert!(residual[0].is_nan());
        assert_eq!(residual[1..], [f32::INFINITY, f32::NEG_INFINITY]);
    }
}

#[test]
fn one_bit_codes_by_hand() {
    let kind = Compression::OneBit { threshold: 0.5 };
    let mut residual = [0.0, 0.25, 0.0, -0.5, 0.0, 0.0, 0.0, 0.0, 4.0];
    let codes = encode(kind, &[0.5, 0.5, 0.75, 0.75, -3.0, 0.0, -0.0, 2.0, 0.0], &mut residual);
    assert_eq!(codes, [0b0110_0001, 0b1000_0000, 0, 0]);
    assert_eq!(residual, [1.5, -0.25, -0.25, 1.25, -2.0, 1.0, 1.0, 1.0, 3.0]);
    assert_eq!(decode(kind, &codes, 9), [-1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0]);
    // The rest of the last word is 0 even where a zero would be above the threshold.
    assert_eq!(encode(Compression::OneBit { threshold: -1.0 }, &[0.0], &mut [0.0]), [0x80, 0, 0, 0]);
}

#[test]
fn two_bit_codes_of_every_byte() {
    let kind = Compression::TwoBit { threshold: 2.0 };
    for byte in 0..=u8::MAX {
        let expected = [6, 4, 2, 0].map(|shift| [0.0, 0.0, -2.0, 2.0][usize::from(byte >> shift & 3)]);
        let codes = [byte, 0, byte, 0xC0, byte, 0, 0, 0];
        let values = decode(kind, &codes, 19);
        assert_eq!((&values[..4], &values[8..12], &values[16..19]), (&expected[..], &expected[..], &expected[..3]));
        assert_eq!(values[4..8], [0.0; 4]);
        assert_eq!(values[12..16], [2.0, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn values_of_16_bits() {
    let values = [1.0, -0.0, 65519.0, 65520.0, -1e30, f32::NAN, f32::INFINITY, 2049.0, 2051.0, 1e-8, 6e-8];
    let halves = decode(Compression::F16, &encode(Compression::F16, &values, &mut []), values.len());
    assert!(halves[5].is_nan());
    let infinity = f32::INFINITY;
    assert_eq!(halves[..5], [1.0, -0.0, 65504.0, infinity, -infinity]);
    assert_eq!(halves[6..], [infinity, 2048.0, 2052.0, 0.0, 2.0_f32.powi(-24)]);
    assert_eq!(encode(Compression::F16, &[1.0, -2.0], &mut []), [0x00, 0x3C, 0x00, 0xC0]);
    let values = [257.0, 259.0, f32::MAX, f32::NAN, -infinity];
    let codes = encode(Compression::BF16, &values, &mut []);
    let halves = decode(Compression::BF16, &codes, values.len());
    assert_eq!(halves[..3], [256.0, 260.0, infinity]);
    assert!(halves[3].is_nan());
    assert_eq!(halves[4], -infinity);
    assert_eq!(codes[..2], [0x80, 0x43]);
}

/// The formulas of MXNet, a value at a time; whether a value is above and below, and what it stands for.
fn expected_codes(kind: Compression, gradient: &[f32], residual: &mut [f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = vec![0; kind.encoded_len(gradient.len())];
    let mut sent = Vec::new();
    for (i, (value, residual)) in gradient.iter().zip(residual).enumerate() {
        *residual += value;
        let (byte, bits, value) = match kind {
            Compression::TwoBit { threshold } if *residual >= threshold => (i / 4, 0xC0 >> (i % 4 * 2), threshold),
            Compression::TwoBit { threshold } if *residual <= -threshold => (i / 4, 0x80 >> (i % 4 * 2), -threshold),
            Compression::OneBit { threshold } if *residual > threshold => (i / 8, 0x80 >> (i % 8), 1.0),
            Compression::OneBit { .. } => (i / 8, 0, -1.0),
            _ => (0, 0, 0.0),
        };
        if bits != 0 {
            codes[byte] |= bits;
        }
        *residual -= value;
        sent.push(value);
    }
    (codes, sent)
}

/// Multiples of 1/64, whose sums are exact in f32.
fn exact() -> impl Strategy<Value = f32> {
    (-256..=256_i32).prop_map(|value| value as f32 / 64.0)
}

fn few_bits() -> impl Strategy<Value = Compression> {
    prop_oneof![
        (1..200_i32).prop_map(|threshold| Compression::TwoBit { threshold: threshold as f32 / 64.0 }),
        exact().prop_map(|threshold| Compression::OneBit { threshold }),
    ]
}

proptest! {
    #[test]
    fn nothing_is_lost_over_time(
        kind in few_bits(),
        steps in (0_usize..200).prop_flat_map(|n| prop::collection::vec(prop::collection::vec(exact(), n), 1..6)),
    ) {
        let count = steps[0].len();
        let (mut residual, mut expected_residual) = (vec![0.0; count], vec![0.0; count]);
        let (mut sent, mut sum) = (vec![0.0; count], vec![0.0; count]);
        for gradient in &steps {
            let codes = encode(kind, gradient, &mut residual);
            let (expected, values) = expected_codes(kind, gradient, &mut expected_residual);
            prop_assert_eq!(&codes, &expected);
            prop_assert_eq!(&residual, &expected_residual);
            prop_assert_eq!(decode(kind, &codes, count), values);
            kind.decode_add(&codes, &mut sent).unwrap();
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
        let total: Vec<f32> = sent.iter().zip(&residual).map(|(sent, kept)| sent + kept).collect();
        prop_assert_eq!(total, sum);
    }

    #[test]
    fn any_floats_follow_the_formulas(kind in few_bits(), bits in prop::collection::vec(any::<(u32, u32)>(), 0..150)) {
        let gradient: Vec<_> = bits.iter().map(|(bits, _)| f32::from_bits(*bits)).collect();
        let mut residual: Vec<_> = bits.iter().map(|(_, bits)| f32::from_bits(*bits)).collect();
        let mut expected_residual = residual.clone();
        let (expected, _) = expected_codes(kind, &gradient, &mut expected_residual);
        prop_assert_eq!(encode(kind, &gradient, &mut residual), expected);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        prop_assert!(residual.iter().zip(&expected_residual).all(same));
    }

    #[test]
    fn whole_values_of_any_length(values in prop::collection::vec(any::<f32>(), 0..1200)) {
        let codes = encode(Compression::None, &values, &mut []);
        prop_assert_eq!(&codes, &bytes(&values));
        let codes = encode(Compression::F16, &values, &mut []);
        let expected: Vec<_> = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        prop_assert_eq!(codes, expected);
        let codes = encode(Compression::BF16, &values, &mut []);
        let mut sums = vec![1.0; values.len()];
        Compression::BF16.decode_add(&codes, &mut sums).unwrap();
        let expected: Vec<_> = values.iter().map(|value| 1.0 + bf16::from_f32(*value).to_f32()).collect();
        prop_assert_eq!(sums, expected);
    }
}

#[test]
fn codes_are_appended() {
    let mut out = vec![7];
    Compression::TwoBit { threshold: 1.0 }.encode(&bytes(&[1.0]), &mut [0.0], &mut out).unwrap();
    assert_eq!(out, [7, 0xC0, 0, 0, 0]);
}

#[test]
fn lengths() {
    let counts = [0, 1, 16, 17, 32, 33];
    let of = |kind: Compression| counts.map(|count| kind.encoded_len(count));
    assert_eq!(of(Compression::None), [0, 4, 64, 68, 128, 132]);
    assert_eq!(of(Compression::TwoBit { threshold: 1.0 }), [0, 4, 4, 8, 8, 12]);
    assert_eq!(of(Compression::OneBit { threshold: 1.0 }), [0, 4, 4, 4, 4, 8]);
    assert_eq!(of(Compression::F16), [0, 2, 32, 34, 64, 66]);
    assert_eq!(of(Compression::BF16), of(Compression::F16));
    assert_eq!(Compression::None.encoded_len(usize::MAX), usize::MAX);
}

#[test]
fn wrong_lengths_are_errors() {
    let kind = Compression::TwoBit { threshold: 1.0 };
    let (mut residual, mut out) = ([5.0; 2], Vec::new());
    let error = kind.encode(&[0; 9], &mut residual, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "bytes of a gradient of f32: expected 8, found 9");
    let error = kind.encode(&[0; 12], &mut residual, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "values of a residual: expected 3, found 2");
    let error = Compression::F16.encode(&[0; 8], &mut residual, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "values of a residual: expected 0, found 2");
    assert_eq!((residual, out.len()), ([5.0; 2], 0));
    let error = kind.decode_into(&[0xFF; 8], &mut residual).unwrap_err();
    assert_eq!(error.to_string(), "bytes of a compressed gradient: expected 4, found 8");
    assert!(Compression::BF16.decode_add(&[0; 5], &mut residual).is_err());
    assert_eq!(residual, [5.0; 2]);
}

#[test]
fn settings_are_read() {
    let read = |settings: &[(&'static str, &'static str)]| Compression::from_settings(settings.iter().copied());
    assert_eq!(read(&[("type", "2bit")]).unwrap(), Compression::TwoBit { threshold: 0.5 });
    assert_eq!(read(&[("threshold", "1e-3"), ("type", "2bit")]).unwrap(), Compression::TwoBit { threshold: 1e-3 });
    assert_eq!(read(&[("type", "1bit")]).unwrap(), Compression::OneBit { threshold: 0.5 });
    assert_eq!(read(&[("type", "1bit"), ("threshold", "-2")]).unwrap(), Compression::OneBit { threshold: -2.0 });
    assert_eq!(read(&[("type", "fp16")]).unwrap(), Compression::F16);
    assert_eq!(read(&[("type", "bf16")]).unwrap(), Compression::BF16);
    assert_eq!(read(&[("type", "none")]).unwrap(), Compression::None);
}

#[test]
fn settings_that_cannot_be_are_errors() {
    let why = |settings: &[(&'static str, &'static str)]| {
        Compression::from_settings(settings.iter().copied()).unwrap_err().to_string()
    };
    assert_eq!(why(&[]), "type of compression \"\": expected 2bit, 1bit, fp16, bf16 or none");
    assert_eq!(why(&[("type", "3bit")]), "type of compression \"3bit\": expected 2bit, 1bit, fp16, bf16 or none");
    for threshold in ["0", "-0", "-1", "nan", "inf", "1e39"] {
        let error = why(&[("type", "2bit"), ("threshold", threshold)]);
        assert!(error.ends_with("expected a finite number above 0"), "{error}");
    }
    assert_eq!(why(&[("type", "2bit"), ("threshold", "x")]), "threshold \"x\": expected a number");
    assert_eq!(why(&[("type", "1bit"), ("threshold", "inf")]), "threshold \"inf\": expected a finite number");
    let error = why(&[("type", "fp16"), ("threshold", "0.5")]);
    assert_eq!(error, "threshold \"0.5\": expected none for this type of compression");
    assert_eq!(why(&[("type", "2bit"), ("type", "1bit")]), "type \"1bit\": expected one value only");
    let error = why(&[("type", "2bit"), ("treshold", "1")]);
    assert_eq!(error, "treshold \"1\": expected only `type` and `threshold` of gradient compression");
    let mut out = Vec::new();
    assert!(Compression::TwoBit { threshold: -1.0 }.encode(&[], &mut [], &mut out).is_err());
    assert!(Compression::OneBit { threshold: f32::NAN }.decode_into(&[], &mut []).is_err());
}
