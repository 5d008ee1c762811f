//! Code from a store: equal bits, and nothing but what was made for this kernel, this compiler and this processor.

use std::sync::Arc;

use crate::common;
use crate::common::operations;
use crate::common::random::{contents, random_kernel};
use crate::common::records::Records;
use tensorc_abi::seal;
use tensorc_codegen::jit::{JitModule, KernelCache, compile_kernels};
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::Kernel;

/// A new process, as far as the cache knows.
fn compile(kernels: &[Kernel], store: &Arc<Records>) -> JitModule {
    let cache = KernelCache::verifying().storing(store.clone());
    compile_kernels(kernels, common::backend(), 2, Interrupt::NEVER, &cache, &common::library)
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A store with the record of one kernel, which calls the library.
fn one() -> (Kernel, Arc<Records>, u128, Vec<u8>) {
    let case = operations::cases().into_iter().map(|case| case.kernel()).find(|k| format!("{k:?}").contains("Exp"));
    let (kernel, store) = (case.unwrap(), Arc::new(Records::default()));
    compile(std::slice::from_ref(&kernel), &store);
    let (number, record) = store.held.lock().unwrap().first_key_value().map(|(n, r)| (*n, r.clone())).unwrap();
    (kernel, store, number, record)
}

/// Runs the kernel with a record as it may have been found; whether it was made anew.
fn anew(kernel: &Kernel, number: u128, record: Vec<u8>) -> Option<Vec<u8>> {
    let store = Arc::new(Records::default());
    store.held.lock().unwrap().insert(number, record);
    let module = compile(std::slice::from_ref(kernel), &store);
    common::difference(kernel, &module, 0, &contents(kernel, 7), &[]).unwrap();
    assert_eq!(*store.found.lock().unwrap(), 1);
    let put = store.put.lock().unwrap();
    assert!(put.iter().all(|n| *n == number));
    put.first().map(|_| store.held.lock().unwrap()[&number].clone())
}

#[test]
fn stored_code_gives_the_same_bits() {
    let mut programs: Vec<(Kernel, Vec<i64>, Vec<Vec<u8>>)> = vec![];
    for seed in 0..150 {
        let (kernel, scalars) = random_kernel(seed);
        programs.push((kernel.clone(), scalars, contents(&kernel, seed)));
    }
    for case in operations::cases().into_iter().step_by(23) {
        programs.push((case.kernel(), vec![], case.buffers()));
    }
    let kernels: Vec<Kernel> = programs.iter().map(|(k, ..)| k.clone()).collect();
    let store = Arc::new(Records::default());
    let first = compile(&kernels, &store);
    let (stored, asked) = (store.put.lock().unwrap().len(), *store.found.lock().unwrap());
    assert!(stored > 200 && asked == 0, "{stored} stored, {asked} found");
    let second = compile(&kernels, &store);
    assert_eq!((store.put.lock().unwrap().len(), *store.found.lock().unwrap()), (stored, stored), "nothing is new");
    for (i, (kernel, scalars, buffers)) in programs.iter().enumerate() {
        let run = |module| common::difference(kernel, module, i, buffers, scalars);
        match run(&first) {
            // The generator does not know every rule of the language.
            Err(why) if why.starts_with("interpreter") => {}
            other => assert_eq!(other.and_then(|()| run(&second)), Ok(()), "kernel {i}"),
        }
    }
    // One more kernel is compiled beside those that are found.
    let more: Vec<Kernel> = kernels.iter().cloned().chain([random_kernel(1_000_000).0]).collect();
    compile(&more, &store);
    assert_eq!(store.put.lock().unwrap().len(), stored + 1);
}

#[test]
fn damaged_records_are_made_anew() {
    let (kernel, _, number, record) = one();
    assert_eq!(anew(&kernel, number, record.clone()), None, "a whole record is used");
    let step = record.len() / 150 + 1;
    let cuts = (0..record.len()).step_by(step).map(|len| record[..len].to_vec());
    let flips = (0..record.len() * 8).step_by(8 * step + 3).map(|bit| {
        let mut damaged = record.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        damaged
    });
    let filled = [[record.clone(), vec![0]].concat(), vec![0; record.len()], record.repeat(2)];
    let mut count = 0;
    for damaged in cuts.chain(flips).chain(filled) {
        assert_eq!(anew(&kernel, number, damaged).as_ref(), Some(&record), "the record is not the first again");
        count += 1;
    }
    assert!(count > 250, "{count}");
}

/// The record with some text in its key replaced by other text of the same length, whole.
fn with_other(record: &[u8], text: &str, other: &str) -> Vec<u8> {
    let mut content = seal::open(record).unwrap().to_vec();
    let at = content.windows(text.len()).position(|w| w == text.as_bytes()).unwrap();
    content[at..at + text.len()].copy_from_slice(other.as_bytes());
    seal::close(&mut content);
    content
}

#[test]
fn what_was_made_for_another_kernel_compiler_or_processor_is_not_used() {
    let (kernel, _, number, record) = one();
    let other = operations::cases().into_iter().map(|c| c.kernel()).find(|k| k.canonical() != kernel.canonical());
    let store = Arc::new(Records::default());
    compile(&[other.unwrap()], &store);
    // As if the numbers were equal.
    let of_other = store.held.lock().unwrap().values().next().unwrap().clone();
    assert_eq!(anew(&kernel, number, of_other).as_ref(), Some(&record));
    let text = String::from_utf8_lossy(&record).into_owned();
    let line = |i: usize| text[text.find("tensorc ").unwrap()..].lines().nth(i).unwrap().to_owned();
    for line in [line(0), line(1), line(2)] {
        let mut changed = line.clone().into_bytes();
        *changed.last_mut().unwrap() ^= 1;
        let changed = with_other(&record, &line, std::str::from_utf8(&changed).unwrap());
        assert_eq!(anew(&kernel, number, changed).as_ref(), Some(&record), "{line}");
    }
}

#[test]
fn code_that_cannot_be_loaded_is_made_anew() {
    let (kernel, _, number, record) = one();
    let content = seal::open(&record).unwrap();
    let key = 16 + u64::from_le_bytes(content[8..16].try_into().unwrap()) as usize;
    let broken: [&[u8]; 4] = [&[], &[0; 3], &[0xff; 40], b"\x7fELF\x02\x01\x01 no more"];
    for code in broken {
        let mut made = [&content[..key], code].concat();
        seal::close(&mut made);
        assert_eq!(anew(&kernel, number, made).as_ref(), Some(&record), "{code:?}");
    }
}
