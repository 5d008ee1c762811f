//! Training over epochs, scoring and predicting.

use std::path::PathBuf;
use std::time::Instant;

use super::progress::Progress;
use super::step::StagedBatch;
use super::{Module, describe};
use crate::error::{Error, TrainError};
use crate::kvstore::KVStore;
use crate::metric::{self, Metric};
use tensorc::Tensor;
use tensorc_data::{Batch, DataIter, HostTensor, Position};

/// What is called after each epoch.
type OnEpoch<'a> = Box<dyn FnMut(&EpochReport) + 'a>;

/// What is called after some batches.
type OnBatches<'a> = Box<dyn FnMut(&Module, Position) -> Result<(), Error> + 'a>;

/// How a module is trained.
#[must_use = "nothing is trained until `Module::fit`"]
pub struct Fit<'a> {
    begin: u32,
    end: u32,
    metric: Box<dyn Metric>,
    evaluate: Option<&'a mut dyn DataIter>,
    checkpoint: Option<PathBuf>,
    progress: bool,
    step_by_step: bool,
    on_epoch: Option<OnEpoch<'a>>,
    on_batches: Option<(u64, OnBatches<'a>)>,
}

/// What an epoch gave.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochReport {
    /// From 0.
    pub epoch: u32,
    /// Metrics over the training batches, as they were before each update.
    pub train: Vec<(String, f64)>,
    /// Metrics over the evaluation batches, after the epoch.
    pub evaluation: Vec<(String, f64)>,
    /// Examples per second of training.
    pub speed: f64,
}

impl std::fmt::Display for EpochReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}:", self.epoch + 1)?;
        for (name, value) in &self.train {
            write!(f, " {name} {value:.4}")?;
        }
        for (name, value) in &self.evaluation {
            write!(f, ", held out {name} {value:.4}")?;
        }
        write!(f, ", {:.0} examples/s", self.speed)
    }
}

impl<'a> Fit<'a> {
    /// That many epochs, measuring accuracy.
    pub fn epochs(count: u32) -> Fit<'a> {
        Fit {
            begin: 0,
            end: count,
            metric: Box::new(metric::Accuracy::default()),
            evaluate: None,
            checkpoint: None,
            progress: true,
            step_by_step: false,
            on_epoch: None,
            on_batches: None,
        }
    }

    /// The first epoch, where a run goes on.
    pub fn begin(self, epoch: u32) -> Fit<'a> {
        Fit { begin: epoch, ..self }
    }

    /// What is measured over training and evaluation batches; accuracy by default.
    pub fn metric(self, metric: Box<dyn Metric>) -> Fit<'a> {
        Fit { metric, ..self }
    }

    /// Batches to score after every epoch.
    pub fn evaluate(self, batches: &'a mut dyn DataIter) -> Fit<'a> {
        Fit { evaluate: Some(batches), ..self }
    }

    /// Saves parameters and optimizer states under this prefix after every epoch, which counts from 1 there. Of the
    /// processes that share a store, rank 0 does.
    pub fn checkpoint(self, prefix: impl Into<PathBuf>) -> Fit<'a> {
        Fit { checkpoint: Some(prefix.into()), ..self }
    }

    /// Shows no line on the terminal.
    pub fn quiet(self) -> Fit<'a> {
        Fit { progress: false, ..self }
    }

    /// Runs forward, backward and updates one by one instead of as one plan, so that gradients can be seen.
    pub fn step_by_step(self) -> Fit<'a> {
        Fit { step_by_step: true, ..self }
    }

    /// Called after every epoch.
    pub fn on_epoch(self, f: impl FnMut(&EpochReport) + 'a) -> Fit<'a> {
        Fit { on_epoch: Some(Box::new(f)), ..self }
    }

    /// Called after every `count` batches of an epoch with the module and the position behind them: what it saves, with
    /// that position, is what [`DataIter::seek`] takes up again.
    pub fn on_batches(self, count: u64, f: impl FnMut(&Module, Position) -> Result<(), Error> + 'a) -> Fit<'a> {
        Fit { on_batches: Some((count.max(1), Box::new(f))), ..self }
    }
}

impl Module {
    /// Trains over epochs, and returns what the last one gave. The first one begins where the batches stand.
    ///
    /// The next batch is taken and brought to the module's device while a step runs.
    ///
    /// # Errors
    /// There is no optimizer, batches do not fit or cannot be read, or what computes fails.
    pub fn fit(&mut self, batches: &mut dyn DataIter, mut fit: Fit<'_>) -> Result<Option<EpochReport>, Error> {
        let mut last = None;
        for epoch in fit.begin..fit.end {
            let report = self.epoch(epoch, batches, &mut fit)?;
            if let Some(prefix) =
                fit.checkpoint.as_ref().filter(|_| self.kvstore().is_none_or(|store| store.rank() == 0))
            {
                self.save_checkpoint(prefix, epoch + 1)?;
                self.save_optimizer_states(prefix, epoch + 1)?;
            }
            if let Some(report_to) = &mut fit.on_epoch {
                report_to(&report);
            }
            last = Some(report);
        }
        Ok(last)
    }

    fn epoch(&mut self, epoch: u32, batches: &mut dyn DataIter, fit: &mut Fit<'_>) -> Result<EpochReport, Error> {
        let progress = Progress::new(fit.progress, epoch, batches);
        let (start, mut examples) = (Instant::now(), 0);
        fit.metric.reset();
        let step = match fit.step_by_step {
            true => Module::step_apart,
            false => Module::step_staged,
        };
        self.each(batches, step, |module, batch, position| {
            module.measure(fit.metric.as_mut(), batch)?;
            examples += batch.examples();
            progress.advance(batch, fit.metric.as_ref());
            match &mut fit.on_batches {
                Some((count, call)) if position.batch.is_multiple_of(*count) => call(module, position),
                _ => Ok(()),
            }
        })?;
        if let Some(group) = self.kvstore().and_then(KVStore::group) {
            // A rank with more batches than this one learns of it here.
            group.barrier(&format!("end of epoch {}", epoch + 1))?;
        }
        let train = fit.metric.values();
        let speed = examples as f64 / start.elapsed().as_secs_f64();
        progress.clear();
        let evaluation = match &mut fit.evaluate {
            Some(held_out) => self.score(&mut **held_out, fit.metric.as_mut())?,
            None => vec![],
        };
        Ok(EpochReport { epoch, train, evaluation, speed })
    }

    /// Runs `compute` for every batch that is left of an epoch, and `after` with the batch and the position behind it.
    /// While a batch is computed, the next one is taken and staged.
    fn each(
        &mut self,
        batches: &mut dyn DataIter,
        compute: fn(&mut Module, &StagedBatch) -> Result<(), Error>,
        mut after: impl FnMut(&mut Module, &Batch, Position) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check(batches)?;
        if batches.position().batch > 0 && batches.batches() == Some(batches.position().batch) {
            batches.reset()?;
        }
        let mut upcoming = self.upcoming(batches)?;
        while let Some((batch, staged)) = upcoming {
            compute(self, &staged)?;
            drop(staged);
            let behind = batches.position();
            let next = self.upcoming(batches);
            if let Err(error) = after(self, &batch, behind) {
                // The batch that was taken ahead comes again; a source that cannot go back has said what it can do.
                let _ = batches.seek(behind);
                return Err(error);
            }
            upcoming = next?;
        }
        Ok(batches.reset()?)
    }

    fn upcoming(&self, batches: &mut dyn DataIter) -> Result<Option<(Batch, StagedBatch)>, Error> {
        let Some(batch) = batches.next()? else { return Ok(None) };
        let staged = self.stage(&batch)?;
        Ok(Some((batch, staged)))
    }

    /// Whether batches have the data and labels that the module takes, in the places where it takes them.
    fn check(&self, batches: &dyn DataIter) -> Result<(), Error> {
        let (data, labels) = (batches.provide_data(), batches.provide_label());
        match data == self.data && self.labels.iter().all(|(at, desc)| labels.get(*at) == Some(desc)) {
            true => Ok(()),
            false => {
                let (expected, found) = (describe(self.inputs()), describe(data.iter().chain(labels)));
                Err(TrainError::Inputs { expected, found }.into())
            }
        }
    }

    /// Takes the outputs for a batch into a metric. What fills up a last batch does not count.
    fn measure(&self, metric: &mut dyn Metric, batch: &Batch) -> Result<(), Error> {
        let label = |tensor: &HostTensor| unpadded(&Tensor::try_from(tensor)?, batch);
        let labels = batch.labels.iter().map(label).collect::<Result<Vec<_>, _>>()?;
        metric.update(&labels, &self.output_tensors(batch)?)
    }

    /// The outputs on the host, without those of examples that fill up a last batch.
    fn output_tensors(&self, batch: &Batch) -> Result<Vec<Tensor>, Error> {
        self.outputs().iter().map(|array| unpadded(&array.to_tensor()?, batch)).collect()
    }

    /// Measures the outputs over an epoch of batches.
    ///
    /// # Errors
    /// The batches or the metric do not fit.
    pub fn score(&mut self, batches: &mut dyn DataIter, metric: &mut dyn Metric) -> Result<Vec<(String, f64)>, Error> {
        metric.reset();
        self.each(batches, infer, |module, batch, _| module.measure(metric, batch))?;
        Ok(metric.values())
    }

    /// The outputs for all examples of an epoch, joined along their first axis.
    ///
    /// # Errors
    /// The batches do not fit.
    pub fn predict(&mut self, batches: &mut dyn DataIter) -> Result<Vec<Tensor>, Error> {
        let mut parts: Vec<Vec<Tensor>> = vec![];
        self.each(batches, infer, |module, batch, _| {
            parts.push(module.output_tensors(batch)?);
            Ok(())
        })?;
        let outputs = parts.first().map_or(0, Vec::len);
        (0..outputs).map(|i| joined(parts.iter().map(|part| &part[i]))).collect()
    }
}

fn infer(module: &mut Module, staged: &StagedBatch) -> Result<(), Error> {
    module.forward_staged(staged, false)?;
    Ok(())
}

/// The part of an array that belongs to examples which do not fill up the batch. The first axis counts
/// examples, or steps of examples.
fn unpadded(tensor: &Tensor, batch: &Batch) -> Result<Tensor, Error> {
    let (kept, size) = (batch.examples() as u64, batch.size() as u64);
    match tensor.dims().first() {
        Some(rows) if batch.pad > 0 && rows % size == 0 => {
            let mut dims = tensor.dims().to_vec();
            dims[0] = rows / size * kept;
            let bytes = tensor.bytes().len() as u64 / size * kept;
            Ok(Tensor::from_bytes(tensor.dtype(), &dims, tensor.data().bytes().slice(..bytes as usize))?)
        }
        _ => Ok(tensor.clone()),
    }
}

fn joined<'t>(parts: impl Iterator<Item = &'t Tensor> + Clone) -> Result<Tensor, Error> {
    let Some(first) = parts.clone().next() else { return Err(Error::Internal("no outputs to join".into())) };
    let mut dims = first.dims().to_vec();
    if let Some(rows) = dims.first_mut() {
        *rows = parts.clone().filter_map(|part| part.dims().first()).sum();
    }
    let bytes: Vec<u8> = parts.flat_map(|part| part.bytes().iter().copied()).collect();
    Ok(Tensor::from_bytes(first.dtype(), &dims, bytes)?)
}
