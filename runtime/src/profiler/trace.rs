//! Recordings as files for trace viewers.
//!
//! The format is the JSON object format of Chrome's trace viewer, which Perfetto reads too: "Trace
//! Event Format", <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.
//! A process stands for a device, a thread for a [`TraceTrack`] of it. A span is a complete event (`X`), a
//! floating one a pair (`b`, `e`); markers are `i`, counters `C`, names `M`. Times are microseconds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Event, EventKind, Recording, TraceTrack};
use crate::device::Device;

/// A trace was not written, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be created.
    #[error("cannot create {path}: {source}", path = path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written, or not completely.
    #[error("cannot write {path}: {source}", path = path.display())]
    WriteFile {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The writer that was given failed.
    #[error("cannot write the trace: {0}")]
    Write(#[source] io::Error),
}

/// One entry of `traceEvents`.
#[derive(Default, Serialize)]
struct Line<'a> {
    ph: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    pid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Joins the two lines of a floating span.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    /// How far a marker reaches: the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Args::is_empty")]
    args: Args<'a>,
}

#[derive(Default, PartialEq, Serialize)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<usize>,
}

impl Args<'_> {
    fn is_empty(&self) -> bool {
        *self == Args::default()
    }
}

/// Numbers of devices and lanes in the file: by order, from 1.
type Tracks = BTreeMap<Device, BTreeMap<TraceTrack, usize>>;

/// An event with its place in the file.
struct Placed<'a> {
    pid: usize,
    tid: usize,
    /// Joins the two lines of a floating span; numbers of other events are not used.
    id: usize,
    event: &'a Event,
    floating: bool,
}

impl Recording {
    /// Writes the trace, event after event, in the order of [`Recording::events`].
    ///
    /// # Errors
    /// The writer fails.
    pub fn write_trace(&self, out: &mut dyn Write) -> Result<(), TraceError> {
        self.write_json(out).map_err(TraceError::Write)
    }

    /// Writes the trace into a file, which is replaced if it exists. An incomplete file stays after
    /// an error.
    ///
    /// # Errors
    /// The file cannot be created, or the disk is full.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> Result<(), TraceError> {
        let path = path.as_ref();
        let file = File::create(path).map_err(|source| TraceError::Create { path: path.to_owned(), source })?;
        let failed = |source| TraceError::WriteFile { path: path.to_owned(), source };
        let mut out = BufWriter::new(file);
        self.write_json(&mut out).map_err(failed)?;
        out.flush().map_err(failed)
    }

    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let events = self.events();
        let mut tracks = Tracks::new();
        for (lane, event) in &events {
            tracks.entry(event.device).or_default().insert(*lane, 0);
        }
        for lanes in tracks.values_mut() {
            lanes.values_mut().zip(1..).for_each(|(number, i)| *number = i);
        }
        let mut lines = Lines { out, first: true };
        write!(lines.out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"dropped\":{}}},", self.dropped)?;
        write!(lines.out, "\"traceEvents\":[")?;
        self.write_names(&tracks, &mut lines)?;
        let pids: BTreeMap<Device, usize> = tracks.keys().copied().zip(1..).collect();
        let placed = events.iter().enumerate().map(|(id, &(lane, event))| Placed {
            pid: pids[&event.device],
            tid: tracks[&event.device][&lane],
            id,
            floating: lane == TraceTrack::Floating,
            event,
        });
        write_events(placed, &mut lines)?;
        lines.out.write_all(b"\n]}\n")
    }

    fn write_names(&self, tracks: &Tracks, lines: &mut Lines<'_>) -> io::Result<()> {
        for (pid, (device, lanes)) in (1..).zip(tracks) {
            let device = device.to_string();
            lines.write(&meta("process_name", pid, None, Args { name: Some(&device), ..Args::default() }))?;
            lines.write(&meta("process_sort_index", pid, None, Args { sort_index: Some(pid), ..Args::default() }))?;
            for (lane, tid) in lanes {
                let name = self.lane_name(*lane);
                lines.write(&meta("thread_name", pid, Some(*tid), Args { name: Some(&name), ..Args::default() }))?;
            }
        }
        Ok(())
    }

    fn lane_name(&self, lane: TraceTrack) -> String {
        let known = self.threads.iter().find(|thread| thread.lane == lane).and_then(|thread| thread.name.clone());
        known.unwrap_or_else(|| match lane {
            TraceTrack::Thread(number) => format!("thread {number}"),
            TraceTrack::Stream(number) => format!("stream {number}"),
            TraceTrack::Floating => "floating".to_owned(),
        })
    }
}

fn meta<'a>(name: &'a str, pid: usize, tid: Option<usize>, args: Args<'a>) -> Line<'a> {
    Line { ph: "M", name, pid, tid, args, ..Line::default() }
}

/// Writes events in order; the ends of floating spans come when their time has come.
fn write_events<'a>(events: impl Iterator<Item = Placed<'a>>, lines: &mut Lines<'_>) -> io::Result<()> {
    let mut ends: BTreeMap<(u64, usize), Placed<'a>> = BTreeMap::new();
    for placed in events {
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= placed.event.time) {
            let (key, ended) = end.remove_entry();
            lines.write(&floating_end(&ended, key.0))?;
        }
        lines.write(&line(&placed))?;
        if let (true, EventKind::Span { end, .. }) = (placed.floating, &placed.event.kind) {
            ends.insert((*end, placed.id), placed);
        }
    }
    ends.iter().try_for_each(|((time, _), ended)| lines.write(&floating_end(ended, *time)))
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn line<'a>(placed: &Placed<'a>) -> Line<'a> {
    let event = placed.event;
    let base = Line {
        ph: "i",
        name: &event.name,
        cat: Some(&event.category),
        pid: placed.pid,
        tid: Some(placed.tid),
        ts: Some(microseconds(event.time)),
        ..Line::default()
    };
    match &event.kind {
        EventKind::Span { end, bytes, worker, error } => {
            let args = Args {
                bytes: (*bytes > 0).then_some(*bytes),
                worker: *worker,
                error: error.as_deref(),
                ..Args::default()
            };
            match placed.floating {
                true => Line { ph: "b", id: Some(placed.id), args, ..base },
                false => Line { ph: "X", dur: Some(microseconds(end - event.time)), args, ..base },
            }
        }
        EventKind::Marker => Line { s: Some("t"), ..base },
        EventKind::Counter(value) => Line { ph: "C", args: Args { value: Some(*value), ..Args::default() }, ..base },
    }
}

fn floating_end<'a>(placed: &Placed<'a>, time: u64) -> Line<'a> {
    let ended = Line { ph: "e", args: Args::default(), ..line(placed) };
    Line { ts: Some(microseconds(time)), ..ended }
}

/// Elements of a JSON array, one a line.
struct Lines<'w> {
    out: &'w mut dyn Write,
    first: bool,
}

impl Lines<'_> {
    fn write(&mut self, line: &Line<'_>) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(serde_json::to_writer(&mut *self.out, line)?)
    }
}
