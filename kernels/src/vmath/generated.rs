//! The f32 functions of the math library as straight-line code. Written by `tests/integration/vmath.rs` from the
//! library's expressions: set `TENSORC_GENERATE` and run that test to write it again.
#![allow(clippy::all, reason = "generated")]
#![cfg_attr(rustfmt, rustfmt::skip)]

use crate::fused::{FusedMultiplyAdd, sqrt};

#[inline(always)]
pub(super) fn exp(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x < f32::from_bits(0xc2d00000); let v3 = if v2 { f32::from_bits(0xc2d00000) } else { x };
    let v5 = v3 > f32::from_bits(0x42b20000); let v6 = if v5 { f32::from_bits(0x42b20000) } else { v3 };
    let v9 = fused.mul_add(v6, f32::from_bits(0x3fb8aa3b), f32::from_bits(0x4b4000fe));
    let v10 = v9 - f32::from_bits(0x4b4000fe); let v13 = fused.mul_add(v10, f32::from_bits(0xbf318000), v6);
    let v14 = fused.mul_add(v10, f32::from_bits(0x395e8083), v13);
    let v17 = fused.mul_add(f32::from_bits(0x3ab5b717), v14, f32::from_bits(0x3c0917e3));
    let v19 = fused.mul_add(v17, v14, f32::from_bits(0x3d2aab44));
    let v21 = fused.mul_add(v19, v14, f32::from_bits(0x3e2aaa51));
    let v23 = fused.mul_add(v21, v14, f32::from_bits(0x3f000000));
    let v25 = fused.mul_add(v23, v14, f32::from_bits(0x3f800000));
    let v26 = fused.mul_add(v25, v14, f32::from_bits(0x3f800000)); let v27 = v9.to_bits() as i32;
    let v29 = v27 >> 1_i32; let v30 = v27.wrapping_sub(v29); let v32 = v29 << 23_i32;
    let v33 = f32::from_bits(v32 as u32); let v34 = v26 * v33; let v35 = v30 << 23_i32;
    let v36 = f32::from_bits(v35 as u32); let v37 = v34 * v36;
    v37
}

#[inline(always)]
pub(super) fn exp2(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x < f32::from_bits(0xc3170000); let v3 = if v2 { f32::from_bits(0xc3170000) } else { x };
    let v5 = v3 > f32::from_bits(0x43010000); let v6 = if v5 { f32::from_bits(0x43010000) } else { v3 };
    let v8 = v6 + f32::from_bits(0x4b4000fe); let v9 = v8 - f32::from_bits(0x4b4000fe); let v10 = v6 - v9;
    let v13 = fused.mul_add(f32::from_bits(0x392209e0), v10, f32::from_bits(0x3aaf8470));
    let v15 = fused.mul_add(v13, v10, f32::from_bits(0x3c1d9529));
    let v17 = fused.mul_add(v15, v10, f32::from_bits(0x3d6357b6));
    let v19 = fused.mul_add(v17, v10, f32::from_bits(0x3e75fdf0));
    let v21 = fused.mul_add(v19, v10, f32::from_bits(0x3f317218));
    let v23 = fused.mul_add(v21, v10, f32::from_bits(0x3f800000)); let v24 = v8.to_bits() as i32;
    let v26 = v24 >> 1_i32; let v27 = v24.wrapping_sub(v26); let v29 = v26 << 23_i32;
    let v30 = f32::from_bits(v29 as u32); let v31 = v23 * v30; let v32 = v27 << 23_i32;
    let v33 = f32::from_bits(v32 as u32); let v34 = v31 * v33;
    v34
}

#[inline(always)]
pub(super) fn expm1(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x < f32::from_bits(0xc1a00000); let v3 = if v2 { f32::from_bits(0xc1a00000) } else { x };
    let v6 = fused.mul_add(v3, f32::from_bits(0x3fb8aa3b), f32::from_bits(0x4b400000));
    let v7 = v6 - f32::from_bits(0x4b400000); let v10 = fused.mul_add(v7, f32::from_bits(0xbf318000), v3);
    let v11 = fused.mul_add(v7, f32::from_bits(0x395e8083), v10); let v12 = v6.to_bits() as i32;
    let v14 = v12 << 23_i32; let v16 = v14.wrapping_add(1056964608_i32); let v17 = f32::from_bits(v16 as u32);
    let v20 = fused.mul_add(f32::from_bits(0x394fdef6), v11, f32::from_bits(0x3ab6a05e));
    let v22 = fused.mul_add(v20, v11, f32::from_bits(0x3c0888e5));
    let v24 = fused.mul_add(v22, v11, f32::from_bits(0x3d2aaa79));
    let v26 = fused.mul_add(v24, v11, f32::from_bits(0x3e2aaaaa));
    let v28 = fused.mul_add(v26, v11, f32::from_bits(0x3f000000)); let v29 = v11 * v11;
    let v30 = fused.mul_add(v28, v29, v11); let v31 = v17 - f32::from_bits(0x3f000000);
    let v32 = fused.mul_add(v17, v30, v31); let v34 = v32 * f32::from_bits(0x40000000);
    let v36 = x <= f32::from_bits(0x42b17217); let v38 = x * f32::from_bits(0x7f800000);
    let v39 = if v36 { v34 } else { v38 }; let v40 = x.abs(); let v42 = v40 < f32::from_bits(0x33000000);
    let v43 = if v42 { x } else { v39 };
    v43
}

#[inline(always)]
pub(super) fn log(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x < f32::from_bits(0x00800000); let v4 = x * f32::from_bits(0x4b000000);
    let v5 = if v2 { v4 } else { x }; let v6 = v5.to_bits() as i32; let v9 = v6.wrapping_sub(1060439283_i32);
    let v10 = v9 >> 23_i32; let v11 = v10 << 23_i32; let v12 = v6.wrapping_sub(v11);
    let v13 = f32::from_bits(v12 as u32); let v14 = v10 as f32;
    let v17 = if v2 { f32::from_bits(0xc1b80000) } else { f32::from_bits(0x00000000) }; let v18 = v14 + v17;
    let v20 = v13 - f32::from_bits(0x3f800000); let v21 = v20 * v20;
    let v24 = fused.mul_add(f32::from_bits(0x3d8ec753), v20, f32::from_bits(0xbdeb1ade));
    let v26 = fused.mul_add(v24, v20, f32::from_bits(0x3def5141));
    let v28 = fused.mul_add(v26, v20, f32::from_bits(0xbdfe7a63));
    let v30 = fused.mul_add(v28, v20, f32::from_bits(0x3e11e90d));
    let v32 = fused.mul_add(v30, v20, f32::from_bits(0xbe2aada5));
    let v34 = fused.mul_add(v32, v20, f32::from_bits(0x3e4ccead));
    let v36 = fused.mul_add(v34, v20, f32::from_bits(0xbe7ffffe));
    let v38 = fused.mul_add(v36, v20, f32::from_bits(0x3eaaaaaa)); let v39 = v38 * v20; let v40 = v39 * v21;
    let v43 = fused.mul_add(v18, f32::from_bits(0xb95e8083), v40);
    let v44 = fused.mul_add(v21, f32::from_bits(0xbf000000), v43); let v46 = v20 + v44;
    let v47 = fused.mul_add(v18, f32::from_bits(0x3f318000), v46); let v49 = x < f32::from_bits(0x7f800000);
    let v50 = if v49 { v47 } else { x }; let v51 = x < f32::from_bits(0x00000000);
    let v53 = if v51 { f32::from_bits(0x7fc00000) } else { v50 }; let v54 = x == f32::from_bits(0x00000000);
    let v56 = if v54 { f32::from_bits(0xff800000) } else { v53 };
    v56
}

#[inline(always)]
pub(super) fn log2(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x < f32::from_bits(0x00800000); let v4 = x * f32::from_bits(0x4b000000);
    let v5 = if v2 { v4 } else { x }; let v6 = v5.to_bits() as i32; let v9 = v6.wrapping_sub(1060439283_i32);
    let v10 = v9 >> 23_i32; let v11 = v10 << 23_i32; let v12 = v6.wrapping_sub(v11);
    let v13 = f32::from_bits(v12 as u32); let v14 = v10 as f32;
    let v17 = if v2 { f32::from_bits(0xc1b80000) } else { f32::from_bits(0x00000000) }; let v18 = v14 + v17;
    let v20 = v13 - f32::from_bits(0x3f800000);
    let v23 = fused.mul_add(f32::from_bits(0x3dc80011), v20, f32::from_bits(0xbe2abcf4));
    let v25 = fused.mul_add(v23, v20, f32::from_bits(0x3e2e80c6));
    let v27 = fused.mul_add(v25, v20, f32::from_bits(0xbe377ec2));
    let v29 = fused.mul_add(v27, v20, f32::from_bits(0x3e5241c0));
    let v31 = fused.mul_add(v29, v20, f32::from_bits(0xbe763b99));
    let v33 = fused.mul_add(v31, v20, f32::from_bits(0x3e93be1f));
    let v35 = fused.mul_add(v33, v20, f32::from_bits(0xbeb8aa40));
    let v37 = fused.mul_add(v35, v20, f32::from_bits(0x3ef6384a));
    let v39 = fused.mul_add(v37, v20, f32::from_bits(0xbf38aa3b)); let v40 = v20 * v20; let v41 = v39 * v40;
    let v43 = fused.mul_add(v20, f32::from_bits(0x32a57060), v41);
    let v45 = fused.mul_add(v20, f32::from_bits(0x3fb8aa3b), v43); let v46 = v18 + v45;
    let v48 = x < f32::from_bits(0x7f800000); let v49 = if v48 { v46 } else { x };
    let v50 = x < f32::from_bits(0x00000000); let v52 = if v50 { f32::from_bits(0x7fc00000) } else { v49 };
    let v53 = x == f32::from_bits(0x00000000); let v55 = if v53 { f32::from_bits(0xff800000) } else { v52 };
    v55
}

#[inline(always)]
pub(super) fn log1p(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x + f32::from_bits(0x3f800000); let v3 = v2 - f32::from_bits(0x3f800000); let v4 = v2 - v3;
    let v5 = f32::from_bits(0x3f800000) - v4; let v6 = x - v3; let v7 = v5 + v6; let v8 = v2.to_bits() as i32;
    let v11 = v8.wrapping_sub(1060439283_i32); let v12 = v11 >> 23_i32; let v13 = v12 << 23_i32;
    let v14 = v8.wrapping_sub(v13); let v15 = f32::from_bits(v14 as u32);
    let v16 = v15 - f32::from_bits(0x3f800000); let v18 = 1065353216_i32.wrapping_sub(v13);
    let v19 = f32::from_bits(v18 as u32); let v21 = x < f32::from_bits(0x5d800000);
    let v22 = fused.mul_add(v7, v19, v16); let v23 = if v21 { v22 } else { v16 }; let v24 = v12 as f32;
    let v25 = v23 * v23; let v28 = fused.mul_add(f32::from_bits(0x3d8ec753), v23, f32::from_bits(0xbdeb1ade));
    let v30 = fused.mul_add(v28, v23, f32::from_bits(0x3def5141));
    let v32 = fused.mul_add(v30, v23, f32::from_bits(0xbdfe7a63));
    let v34 = fused.mul_add(v32, v23, f32::from_bits(0x3e11e90d));
    let v36 = fused.mul_add(v34, v23, f32::from_bits(0xbe2aada5));
    let v38 = fused.mul_add(v36, v23, f32::from_bits(0x3e4ccead));
    let v40 = fused.mul_add(v38, v23, f32::from_bits(0xbe7ffffe));
    let v42 = fused.mul_add(v40, v23, f32::from_bits(0x3eaaaaaa)); let v43 = v42 * v23; let v44 = v43 * v25;
    let v47 = fused.mul_add(v24, f32::from_bits(0xb95e8083), v44);
    let v48 = fused.mul_add(v25, f32::from_bits(0xbf000000), v47); let v50 = v23 + v48;
    let v51 = fused.mul_add(v24, f32::from_bits(0x3f318000), v50); let v53 = x < f32::from_bits(0x7f800000);
    let v54 = if v53 { v51 } else { x }; let v56 = v2 < f32::from_bits(0x00000000);
    let v58 = if v56 { f32::from_bits(0x7fc00000) } else { v54 }; let v59 = v2 == f32::from_bits(0x00000000);
    let v61 = if v59 { f32::from_bits(0xff800000) } else { v58 }; let v62 = x == f32::from_bits(0x00000000);
    let v63 = if v62 { x } else { v61 };
    v63
}

#[inline(always)]
pub(super) fn asin(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v3 = v1 < f32::from_bits(0x3f000000); let v4 = v1 * v1;
    let v6 = f32::from_bits(0x3f800000) - v1; let v7 = v6 * f32::from_bits(0x3f000000);
    let v8 = if v3 { v4 } else { v7 }; let v9 = sqrt(v8); let v10 = if v3 { v1 } else { v9 };
    let v13 = fused.mul_add(f32::from_bits(0x3d09ff6a), v8, f32::from_bits(0x3c8c7c8f));
    let v15 = fused.mul_add(v13, v8, f32::from_bits(0x3cfec6d1));
    let v17 = fused.mul_add(v15, v8, f32::from_bits(0x3d36addd));
    let v19 = fused.mul_add(v17, v8, f32::from_bits(0x3d999a18));
    let v21 = fused.mul_add(v19, v8, f32::from_bits(0x3e2aaaaa)); let v22 = v21 * v8; let v23 = v22 * v10;
    let v25 = fused.mul_add(v10, f32::from_bits(0xc0000000), f32::from_bits(0x3f800000));
    let v27 = fused.mul_add(v23, f32::from_bits(0xc0000000), f32::from_bits(0x3f121fb5)); let v28 = v25 + v27;
    let v29 = v10 + v23; let v30 = if v3 { v29 } else { v28 }; let v32 = x.to_bits() as i32;
    let v33 = v32 & -2147483648_i32; let v34 = v30.to_bits() as i32; let v35 = v34 | v33;
    let v36 = f32::from_bits(v35 as u32);
    v36
}

#[inline(always)]
pub(super) fn acos(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v3 = v1 < f32::from_bits(0x3f000000); let v4 = v1 * v1;
    let v6 = f32::from_bits(0x3f800000) - v1; let v7 = v6 * f32::from_bits(0x3f000000);
    let v8 = if v3 { v4 } else { v7 }; let v9 = sqrt(v8); let v10 = if v3 { v1 } else { v9 };
    let v13 = fused.mul_add(f32::from_bits(0x3d09ff6a), v8, f32::from_bits(0x3c8c7c8f));
    let v15 = fused.mul_add(v13, v8, f32::from_bits(0x3cfec6d1));
    let v17 = fused.mul_add(v15, v8, f32::from_bits(0x3d36addd));
    let v19 = fused.mul_add(v17, v8, f32::from_bits(0x3d999a18));
    let v21 = fused.mul_add(v19, v8, f32::from_bits(0x3e2aaaaa)); let v22 = v21 * v8; let v23 = v22 * v10;
    let v24 = v10 + v23; let v26 = v24 * f32::from_bits(0x40000000); let v28 = x < f32::from_bits(0x00000000);
    let v31 = v26 - f32::from_bits(0xb3bbbd2e); let v32 = f32::from_bits(0x40490fdb) - v31;
    let v33 = if v28 { v32 } else { v26 }; let v36 = x.to_bits() as i32; let v37 = v36 & -2147483648_i32;
    let v38 = v24.to_bits() as i32; let v39 = v38 | v37; let v40 = f32::from_bits(v39 as u32);
    let v42 = v40 - f32::from_bits(0xb33bbd2e); let v43 = f32::from_bits(0x3fc90fdb) - v42;
    let v44 = if v3 { v43 } else { v33 };
    v44
}

#[inline(always)]
pub(super) fn atan(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v3 = v1 > f32::from_bits(0x3f800000); let v5 = f32::from_bits(0xbf800000) / v1;
    let v6 = if v3 { v5 } else { v1 }; let v7 = v6 * v6;
    let v10 = fused.mul_add(f32::from_bits(0x3ac32036), v7, f32::from_bits(0xbc15d35b));
    let v12 = fused.mul_add(v10, v7, f32::from_bits(0x3cd77d96));
    let v14 = fused.mul_add(v12, v7, f32::from_bits(0xbd488ad2));
    let v16 = fused.mul_add(v14, v7, f32::from_bits(0x3d90037c));
    let v18 = fused.mul_add(v16, v7, f32::from_bits(0xbdb6ec7f));
    let v20 = fused.mul_add(v18, v7, f32::from_bits(0x3de3166d));
    let v22 = fused.mul_add(v20, v7, f32::from_bits(0xbe1244a9));
    let v24 = fused.mul_add(v22, v7, f32::from_bits(0x3e4cccab));
    let v26 = fused.mul_add(v24, v7, f32::from_bits(0xbeaaaaab)); let v27 = v26 * v7;
    let v30 = if v3 { f32::from_bits(0x3fc90fdb) } else { f32::from_bits(0x00000000) };
    let v32 = if v3 { f32::from_bits(0xb33bbd2e) } else { f32::from_bits(0x00000000) };
    let v33 = fused.mul_add(v27, v6, v32); let v34 = v6 + v33; let v35 = v30 + v34; let v37 = x.to_bits() as i32;
    let v38 = v37 & -2147483648_i32; let v39 = v35.to_bits() as i32; let v40 = v39 | v38;
    let v41 = f32::from_bits(v40 as u32);
    v41
}

#[inline(always)]
pub(super) fn sinh(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v2 = v1 * v1;
    let v5 = fused.mul_add(f32::from_bits(0x363c5387), v2, f32::from_bits(0x39500480));
    let v7 = fused.mul_add(v5, v2, f32::from_bits(0x3c08888f));
    let v9 = fused.mul_add(v7, v2, f32::from_bits(0x3e2aaaab)); let v10 = v9 * v2;
    let v11 = fused.mul_add(v10, v1, v1);
    let v14 = fused.mul_add(v1, f32::from_bits(0x3fb8aa3b), f32::from_bits(0x4b400000));
    let v15 = v14 - f32::from_bits(0x4b400000); let v18 = fused.mul_add(v15, f32::from_bits(0xbf318000), v1);
    let v19 = fused.mul_add(v15, f32::from_bits(0x395e8083), v18); let v20 = v14.to_bits() as i32;
    let v22 = v20 << 23_i32; let v25 = fused.mul_add(f32::from_bits(0x3ab5b717), v19, f32::from_bits(0x3c0917e3));
    let v27 = fused.mul_add(v25, v19, f32::from_bits(0x3d2aab44));
    let v29 = fused.mul_add(v27, v19, f32::from_bits(0x3e2aaa51));
    let v31 = fused.mul_add(v29, v19, f32::from_bits(0x3f000000));
    let v33 = fused.mul_add(v31, v19, f32::from_bits(0x3f800000));
    let v34 = fused.mul_add(v33, v19, f32::from_bits(0x3f800000)); let v36 = v22.wrapping_sub(8388608_i32);
    let v37 = v34.to_bits() as i32; let v38 = v37.wrapping_add(v36); let v39 = f32::from_bits(v38 as u32);
    let v41 = v1 <= f32::from_bits(0x42b2d4fc); let v43 = v1 * f32::from_bits(0x7f800000);
    let v44 = if v41 { v39 } else { v43 }; let v46 = f32::from_bits(0x3e800000) / v44; let v47 = v44 - v46;
    let v48 = v1 < f32::from_bits(0x3f800000); let v49 = if v48 { v11 } else { v47 }; let v51 = x.to_bits() as i32;
    let v52 = v51 & -2147483648_i32; let v53 = v49.to_bits() as i32; let v54 = v53 | v52;
    let v55 = f32::from_bits(v54 as u32);
    v55
}

#[inline(always)]
pub(super) fn cosh(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v4 = fused.mul_add(v1, f32::from_bits(0x3fb8aa3b), f32::from_bits(0x4b400000));
    let v5 = v4 - f32::from_bits(0x4b400000); let v8 = fused.mul_add(v5, f32::from_bits(0xbf318000), v1);
    let v9 = fused.mul_add(v5, f32::from_bits(0x395e8083), v8); let v10 = v4.to_bits() as i32;
    let v12 = v10 << 23_i32; let v15 = fused.mul_add(f32::from_bits(0x3ab5b717), v9, f32::from_bits(0x3c0917e3));
    let v17 = fused.mul_add(v15, v9, f32::from_bits(0x3d2aab44));
    let v19 = fused.mul_add(v17, v9, f32::from_bits(0x3e2aaa51));
    let v21 = fused.mul_add(v19, v9, f32::from_bits(0x3f000000));
    let v23 = fused.mul_add(v21, v9, f32::from_bits(0x3f800000));
    let v24 = fused.mul_add(v23, v9, f32::from_bits(0x3f800000)); let v26 = v12.wrapping_sub(8388608_i32);
    let v27 = v24.to_bits() as i32; let v28 = v27.wrapping_add(v26); let v29 = f32::from_bits(v28 as u32);
    let v31 = v1 <= f32::from_bits(0x42b2d4fc); let v33 = v1 * f32::from_bits(0x7f800000);
    let v34 = if v31 { v29 } else { v33 }; let v36 = f32::from_bits(0x3e800000) / v34; let v37 = v36 + v34;
    v37
}

#[inline(always)]
pub(super) fn tanh(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v3 = v1 * f32::from_bits(0xc0000000); let v5 = v3 < f32::from_bits(0xc1a00000);
    let v6 = if v5 { f32::from_bits(0xc1a00000) } else { v3 };
    let v9 = fused.mul_add(v6, f32::from_bits(0x3fb8aa3b), f32::from_bits(0x4b400000));
    let v10 = v9 - f32::from_bits(0x4b400000); let v13 = fused.mul_add(v10, f32::from_bits(0xbf318000), v6);
    let v14 = fused.mul_add(v10, f32::from_bits(0x395e8083), v13); let v15 = v9.to_bits() as i32;
    let v17 = v15 << 23_i32; let v19 = v17.wrapping_add(1065353216_i32); let v20 = f32::from_bits(v19 as u32);
    let v23 = fused.mul_add(f32::from_bits(0x394fdef6), v14, f32::from_bits(0x3ab6a05e));
    let v25 = fused.mul_add(v23, v14, f32::from_bits(0x3c0888e5));
    let v27 = fused.mul_add(v25, v14, f32::from_bits(0x3d2aaa79));
    let v29 = fused.mul_add(v27, v14, f32::from_bits(0x3e2aaaaa));
    let v31 = fused.mul_add(v29, v14, f32::from_bits(0x3f000000)); let v32 = v14 * v14;
    let v33 = fused.mul_add(v31, v32, v14); let v35 = v20 - f32::from_bits(0x3f800000);
    let v36 = fused.mul_add(v20, v33, v35); let v37 = v20 + f32::from_bits(0x3f800000);
    let v38 = fused.mul_add(v20, v33, v37); let v40 = v36 < f32::from_bits(0xbf4ccccd);
    let v42 = fused.mul_add(v36, f32::from_bits(0x40000000), f32::from_bits(0x40000000)); let v43 = v36.abs();
    let v44 = if v40 { v42 } else { v43 }; let v45 = v44 / v38; let v46 = f32::from_bits(0x3f800000) - v45;
    let v47 = if v40 { v46 } else { v45 }; let v49 = x.to_bits() as i32; let v50 = v49 & -2147483648_i32;
    let v51 = v47.to_bits() as i32; let v52 = v51 | v50; let v53 = f32::from_bits(v52 as u32);
    v53
}

#[inline(always)]
pub(super) fn asinh(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v2 = v1 * v1; let v4 = v2 + f32::from_bits(0x3f800000); let v5 = sqrt(v4);
    let v6 = v5 + f32::from_bits(0x3f800000); let v7 = v2 / v6; let v8 = v7 + v1;
    let v10 = v1 > f32::from_bits(0x58635fa9);
    let v13 = if v10 { f32::from_bits(0x3f317218) } else { f32::from_bits(0x00000000) };
    let v14 = if v10 { v1 } else { v8 }; let v15 = v14 + f32::from_bits(0x3f800000);
    let v16 = v15 - f32::from_bits(0x3f800000); let v17 = v15 - v16; let v18 = f32::from_bits(0x3f800000) - v17;
    let v19 = v14 - v16; let v20 = v18 + v19; let v21 = v15.to_bits() as i32;
    let v24 = v21.wrapping_sub(1060439283_i32); let v25 = v24 >> 23_i32; let v26 = v25 << 23_i32;
    let v27 = v21.wrapping_sub(v26); let v28 = f32::from_bits(v27 as u32);
    let v29 = v28 - f32::from_bits(0x3f800000); let v31 = 1065353216_i32.wrapping_sub(v26);
    let v32 = f32::from_bits(v31 as u32); let v34 = v14 < f32::from_bits(0x5d800000);
    let v35 = fused.mul_add(v20, v32, v29); let v36 = if v34 { v35 } else { v29 }; let v37 = v25 as f32;
    let v38 = v36 * v36; let v41 = fused.mul_add(f32::from_bits(0x3d8ec753), v36, f32::from_bits(0xbdeb1ade));
    let v43 = fused.mul_add(v41, v36, f32::from_bits(0x3def5141));
    let v45 = fused.mul_add(v43, v36, f32::from_bits(0xbdfe7a63));
    let v47 = fused.mul_add(v45, v36, f32::from_bits(0x3e11e90d));
    let v49 = fused.mul_add(v47, v36, f32::from_bits(0xbe2aada5));
    let v51 = fused.mul_add(v49, v36, f32::from_bits(0x3e4ccead));
    let v53 = fused.mul_add(v51, v36, f32::from_bits(0xbe7ffffe));
    let v55 = fused.mul_add(v53, v36, f32::from_bits(0x3eaaaaaa)); let v56 = v55 * v36; let v57 = v56 * v38;
    let v60 = fused.mul_add(v37, f32::from_bits(0xb95e8083), v57);
    let v61 = fused.mul_add(v38, f32::from_bits(0xbf000000), v60); let v63 = v36 + v61;
    let v64 = fused.mul_add(v37, f32::from_bits(0x3f318000), v63); let v66 = v14 < f32::from_bits(0x7f800000);
    let v67 = if v66 { v64 } else { v14 }; let v68 = v15 < f32::from_bits(0x00000000);
    let v70 = if v68 { f32::from_bits(0x7fc00000) } else { v67 }; let v71 = v15 == f32::from_bits(0x00000000);
    let v73 = if v71 { f32::from_bits(0xff800000) } else { v70 }; let v74 = v14 == f32::from_bits(0x00000000);
    let v75 = if v74 { v14 } else { v73 }; let v76 = v75 + v13; let v78 = x.to_bits() as i32;
    let v79 = v78 & -2147483648_i32; let v80 = v76.to_bits() as i32; let v81 = v80 | v79;
    let v82 = f32::from_bits(v81 as u32);
    v82
}

#[inline(always)]
pub(super) fn acosh(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v2 = x - f32::from_bits(0x3f800000); let v4 = v2 * f32::from_bits(0x40000000);
    let v5 = fused.mul_add(v2, v2, v4); let v6 = sqrt(v5); let v7 = v6 + v2;
    let v8 = x < f32::from_bits(0x3f800000); let v11 = x > f32::from_bits(0x58635fa9);
    let v14 = if v11 { f32::from_bits(0x3f317218) } else { f32::from_bits(0x00000000) };
    let v15 = if v11 { x } else { v7 }; let v16 = v15 + f32::from_bits(0x3f800000);
    let v17 = v16 - f32::from_bits(0x3f800000); let v18 = v16 - v17; let v19 = f32::from_bits(0x3f800000) - v18;
    let v20 = v15 - v17; let v21 = v19 + v20; let v22 = v16.to_bits() as i32;
    let v25 = v22.wrapping_sub(1060439283_i32); let v26 = v25 >> 23_i32; let v27 = v26 << 23_i32;
    let v28 = v22.wrapping_sub(v27); let v29 = f32::from_bits(v28 as u32);
    let v30 = v29 - f32::from_bits(0x3f800000); let v32 = 1065353216_i32.wrapping_sub(v27);
    let v33 = f32::from_bits(v32 as u32); let v35 = v15 < f32::from_bits(0x5d800000);
    let v36 = fused.mul_add(v21, v33, v30); let v37 = if v35 { v36 } else { v30 }; let v38 = v26 as f32;
    let v39 = v37 * v37; let v42 = fused.mul_add(f32::from_bits(0x3d8ec753), v37, f32::from_bits(0xbdeb1ade));
    let v44 = fused.mul_add(v42, v37, f32::from_bits(0x3def5141));
    let v46 = fused.mul_add(v44, v37, f32::from_bits(0xbdfe7a63));
    let v48 = fused.mul_add(v46, v37, f32::from_bits(0x3e11e90d));
    let v50 = fused.mul_add(v48, v37, f32::from_bits(0xbe2aada5));
    let v52 = fused.mul_add(v50, v37, f32::from_bits(0x3e4ccead));
    let v54 = fused.mul_add(v52, v37, f32::from_bits(0xbe7ffffe));
    let v56 = fused.mul_add(v54, v37, f32::from_bits(0x3eaaaaaa)); let v57 = v56 * v37; let v58 = v57 * v39;
    let v61 = fused.mul_add(v38, f32::from_bits(0xb95e8083), v58);
    let v62 = fused.mul_add(v39, f32::from_bits(0xbf000000), v61); let v64 = v37 + v62;
    let v65 = fused.mul_add(v38, f32::from_bits(0x3f318000), v64); let v67 = v15 < f32::from_bits(0x7f800000);
    let v68 = if v67 { v65 } else { v15 }; let v69 = v16 < f32::from_bits(0x00000000);
    let v70 = if v69 { f32::from_bits(0x7fc00000) } else { v68 }; let v71 = v16 == f32::from_bits(0x00000000);
    let v73 = if v71 { f32::from_bits(0xff800000) } else { v70 }; let v74 = v15 == f32::from_bits(0x00000000);
    let v75 = if v74 { v15 } else { v73 }; let v76 = v75 + v14;
    let v77 = if v8 { f32::from_bits(0x7fc00000) } else { v76 };
    v77
}

#[inline(always)]
pub(super) fn atanh(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v3 = v1 * f32::from_bits(0x40000000); let v5 = f32::from_bits(0x3f800000) - v1;
    let v6 = v3 / v5; let v7 = v6 + f32::from_bits(0x3f800000); let v8 = v7 - f32::from_bits(0x3f800000);
    let v9 = v7 - v8; let v10 = f32::from_bits(0x3f800000) - v9; let v11 = v6 - v8; let v12 = v10 + v11;
    let v13 = v7.to_bits() as i32; let v16 = v13.wrapping_sub(1060439283_i32); let v17 = v16 >> 23_i32;
    let v18 = v17 << 23_i32; let v19 = v13.wrapping_sub(v18); let v20 = f32::from_bits(v19 as u32);
    let v21 = v20 - f32::from_bits(0x3f800000); let v23 = 1065353216_i32.wrapping_sub(v18);
    let v24 = f32::from_bits(v23 as u32); let v26 = v6 < f32::from_bits(0x5d800000);
    let v27 = fused.mul_add(v12, v24, v21); let v28 = if v26 { v27 } else { v21 }; let v29 = v17 as f32;
    let v30 = v28 * v28; let v33 = fused.mul_add(f32::from_bits(0x3d8ec753), v28, f32::from_bits(0xbdeb1ade));
    let v35 = fused.mul_add(v33, v28, f32::from_bits(0x3def5141));
    let v37 = fused.mul_add(v35, v28, f32::from_bits(0xbdfe7a63));
    let v39 = fused.mul_add(v37, v28, f32::from_bits(0x3e11e90d));
    let v41 = fused.mul_add(v39, v28, f32::from_bits(0xbe2aada5));
    let v43 = fused.mul_add(v41, v28, f32::from_bits(0x3e4ccead));
    let v45 = fused.mul_add(v43, v28, f32::from_bits(0xbe7ffffe));
    let v47 = fused.mul_add(v45, v28, f32::from_bits(0x3eaaaaaa)); let v48 = v47 * v28; let v49 = v48 * v30;
    let v52 = fused.mul_add(v29, f32::from_bits(0xb95e8083), v49);
    let v53 = fused.mul_add(v30, f32::from_bits(0xbf000000), v52); let v55 = v28 + v53;
    let v56 = fused.mul_add(v29, f32::from_bits(0x3f318000), v55); let v58 = v6 < f32::from_bits(0x7f800000);
    let v59 = if v58 { v56 } else { v6 }; let v61 = v7 < f32::from_bits(0x00000000);
    let v63 = if v61 { f32::from_bits(0x7fc00000) } else { v59 }; let v64 = v7 == f32::from_bits(0x00000000);
    let v66 = if v64 { f32::from_bits(0xff800000) } else { v63 }; let v67 = v6 == f32::from_bits(0x00000000);
    let v68 = if v67 { v6 } else { v66 }; let v70 = v68 * f32::from_bits(0x3f000000); let v72 = x.to_bits() as i32;
    let v73 = v72 & -2147483648_i32; let v74 = v70.to_bits() as i32; let v75 = v74 | v73;
    let v76 = f32::from_bits(v75 as u32);
    v76
}

#[inline(always)]
pub(super) fn erf(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v2 = v1 * v1;
    let v5 = fused.mul_add(f32::from_bits(0xb6ff92dd), v2, f32::from_bits(0x38da7bbc));
    let v7 = fused.mul_add(v5, v2, f32::from_bits(0xba5ac15d));
    let v9 = fused.mul_add(v7, v2, f32::from_bits(0x3baab535));
    let v11 = fused.mul_add(v9, v2, f32::from_bits(0xbcdc0ab2));
    let v13 = fused.mul_add(v11, v2, f32::from_bits(0x3de71700));
    let v15 = fused.mul_add(v13, v2, f32::from_bits(0xbec093a1));
    let v17 = fused.mul_add(v15, v2, f32::from_bits(0x3e0375d4)); let v18 = fused.mul_add(v17, v1, v1);
    let v20 = v1 > f32::from_bits(0x407ae148); let v21 = if v20 { f32::from_bits(0x407ae148) } else { v1 };
    let v23 = v21 - f32::from_bits(0x40200000);
    let v26 = fused.mul_add(f32::from_bits(0xb71190e8), v23, f32::from_bits(0x37a94e8f));
    let v28 = fused.mul_add(v26, v23, f32::from_bits(0x387c96a6));
    let v30 = fused.mul_add(v28, v23, f32::from_bits(0xb9905aef));
    let v32 = fused.mul_add(v30, v23, f32::from_bits(0x399748af));
    let v34 = fused.mul_add(v32, v23, f32::from_bits(0x3a14217d));
    let v36 = fused.mul_add(v34, v23, f32::from_bits(0xbb38bf5d));
    let v38 = fused.mul_add(v36, v23, f32::from_bits(0x3bc819f0));
    let v40 = fused.mul_add(v38, v23, f32::from_bits(0xbc0d2750));
    let v42 = fused.mul_add(v40, v23, f32::from_bits(0x3c08d87c));
    let v44 = fused.mul_add(v42, v23, f32::from_bits(0xbbb27973));
    let v46 = fused.mul_add(v44, v23, f32::from_bits(0x3b0ebf10));
    let v48 = fused.mul_add(v46, v23, f32::from_bits(0x3f7fe555)); let v50 = v1 < f32::from_bits(0x3fa00000);
    let v51 = if v50 { v18 } else { v48 }; let v53 = x.to_bits() as i32; let v54 = v53 & -2147483648_i32;
    let v55 = v51.to_bits() as i32; let v56 = v55 | v54; let v57 = f32::from_bits(v56 as u32);
    v57
}

#[inline(always)]
pub(super) fn ndtr(fused: impl FusedMultiplyAdd, x: f32) -> f32 {
    let v1 = x.abs(); let v3 = v1 > f32::from_bits(0x41640000);
    let v4 = if v3 { f32::from_bits(0x41640000) } else { v1 }; let v5 = v4 * v4;
    let v8 = fused.mul_add(v5, f32::from_bits(0xbf38aa54), f32::from_bits(0x4b400000));
    let v11 = fused.mul_add(v8, f32::from_bits(0x3fb17200), f32::from_bits(0xcb851580));
    let v12 = fused.mul_add(v4, v4, v11); let v13 = v8.to_bits() as i32; let v15 = v13 << 23_i32;
    let v18 = fused.mul_add(f32::from_bits(0x57b57062), v12, f32::from_bits(0xd9893449));
    let v20 = fused.mul_add(v18, v12, f32::from_bits(0x5b2aac75));
    let v22 = fused.mul_add(v20, v12, f32::from_bits(0xdcaaaa4c));
    let v24 = fused.mul_add(v22, v12, f32::from_bits(0x5e00001f));
    let v26 = fused.mul_add(v24, v12, f32::from_bits(0xdf000011));
    let v28 = fused.mul_add(v26, v12, f32::from_bits(0x5f800000)); let v29 = v28.to_bits() as i32;
    let v30 = v29.wrapping_add(v15); let v31 = f32::from_bits(v30 as u32);
    let v34 = fused.mul_add(f32::from_bits(0x15831b1f), v4, f32::from_bits(0x1c565f1c));
    let v36 = fused.mul_add(v34, v4, f32::from_bits(0x1dd02611));
    let v38 = fused.mul_add(v36, v4, f32::from_bits(0x1ea7e1df));
    let v40 = fused.mul_add(v38, v4, f32::from_bits(0x1f000000)); let v41 = v31 * v40;
    let v44 = fused.mul_add(f32::from_bits(0x3d069346), v4, f32::from_bits(0x3e81fbc8));
    let v46 = fused.mul_add(v44, v4, f32::from_bits(0x3f5cf84d));
    let v48 = fused.mul_add(v46, v4, f32::from_bits(0x3fba11eb));
    let v50 = fused.mul_add(v48, v4, f32::from_bits(0x3f800000)); let v51 = v41 / v50;
    let v53 = x < f32::from_bits(0x00000000); let v54 = f32::from_bits(0x3f800000) - v51;
    let v55 = if v53 { v51 } else { v54 };
    v55
}
