//! Arrays over memory that another library sees, through DLPack.

use tensorc::DType;
use tensorc::runtime::DeviceKind;
use tensorc::runtime::dlpack::Imported;

use super::runtimes;

/// What no handle reaches is not computed, unless another library sees the memory.
#[test]
fn writes_to_lent_memory_are_made() {
    for rt in runtimes() {
        let target = rt.zeros(&[2], DType::F32).unwrap();
        if target.device().kind != DeviceKind::Cpu {
            assert!(target.to_dlpack().is_err(), "the memory is not the host's");
            continue;
        }
        let lent = target.to_dlpack().unwrap();
        // SAFETY: the tensor was made for us alone; nothing else writes the memory while it is read.
        let seen = unsafe { Imported::from_versioned(lent) }.unwrap();
        let one = rt.ones(&[2], DType::F32).unwrap();
        rt.op("add").unwrap().arg(&one).arg(&one).into(&[&target]).unwrap();
        drop(target);
        rt.wait_all().unwrap();
        assert_eq!(seen.as_tensor().elements::<f32>().collect::<Vec<_>>(), [2.0, 2.0]);
        let back = rt.from_dlpack(seen).unwrap();
        assert_eq!((&back + 1.0).unwrap().to_vec::<f32>().unwrap(), [3.0, 3.0]);
    }
}
