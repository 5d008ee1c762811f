//! Damaged artifacts are refused before their code runs.

use tensorc::aot::link::LinkOutput;
use tensorc::runtime::artifact::{Artifact, ArtifactError, LoadOptions, Manifest};

use super::built;

/// Damages that are tried: `TENSORC_REPEATS` times so many.
fn damages() -> u64 {
    100 * std::env::var("TENSORC_REPEATS").ok().and_then(|n| n.parse::<u64>().ok()).unwrap_or(1)
}

/// The bytes with a bit flipped, or cut off.
fn damaged(bytes: &[u8], random: &mut u64) -> Vec<u8> {
    let mut next = || {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 20) as usize
    };
    let mut bytes = bytes.to_vec();
    if next() % 4 == 0 {
        bytes.truncate(next() % bytes.len());
    } else {
        let bit = next() % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

#[test]
fn damaged_libraries_are_not_loaded() {
    let Some((dir, path, _)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let whole = std::fs::read(&path).unwrap();
    let target = dir.path().join("damaged.so");
    let options = LoadOptions { weights: Some(dir.path().join("digits.weights")), ..LoadOptions::default() };
    let mut random = 1;
    for case in 0..damages() {
        std::fs::write(&target, damaged(&whole, &mut random)).unwrap();
        let error = Artifact::load(&target, &options).err();
        assert!(
            matches!(error, Some(ArtifactError::Damaged | ArtifactError::NoArtifact | ArtifactError::Version { .. })),
            "case {case}: {error:?}"
        );
    }
    // What is cut off behind the seal is not the library any more, either.
    let mut longer = whole;
    longer.push(0);
    std::fs::write(&target, longer).unwrap();
    assert!(matches!(Artifact::load(&target, &options), Err(ArtifactError::Damaged)));
}

#[test]
fn damaged_weights_are_refused() {
    let Some((dir, path, _)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let whole = std::fs::read(dir.path().join("digits.weights")).unwrap();
    let target = dir.path().join("damaged.weights");
    let options = LoadOptions { weights: Some(target.clone()), ..LoadOptions::default() };
    let mut random = 2;
    for case in 0..damages() {
        let bytes = damaged(&whole, &mut random);
        // The header's unused words close the gap to 64 bytes: nothing depends on them.
        if bytes.len() == whole.len() && bytes[..40] == whole[..40] && bytes[64..] == whole[64..] {
            continue;
        }
        std::fs::write(&target, bytes).unwrap();
        let error = Artifact::load(&path, &options).err();
        assert!(matches!(error, Some(ArtifactError::Weights { .. })), "case {case}: {error:?}");
    }
}

#[test]
fn manifests_of_newer_formats_are_refused() {
    let Some((_dir, path, _)) = built(LinkOutput::SharedLibrary, "digits.so", "native") else { return };
    let file = std::fs::read(path).unwrap();
    let manifest = Manifest::of_elf(&file).unwrap();
    assert_eq!(manifest.name, "digits");
    assert!(manifest.kernels.iter().all(|k| k.code_bytes > 0 && k.kir.contains("kernel")), "{manifest:?}");
    assert_eq!(Manifest::from_json(&manifest.to_json()).unwrap(), manifest);
    let newer = |format| Manifest { format, ..manifest.clone() };
    let (major, minor) = manifest.format;
    for format in [(major, minor + 1), (major + 1, 0)] {
        let error = Manifest::from_json(&newer(format).to_json()).err().unwrap();
        assert!(matches!(error, ArtifactError::Version { .. }), "{error}");
    }
}
