//! Groups of processes: this test starts itself under the launcher of the MPI library that it was linked with.
//!
//! A job gets its folder in an environment variable. That also tells its processes from others, so that none is left behind.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{env, fs};

use bytes::Bytes;
use tensorc_kvstore::transport::mpi::{MpiTransport, library_version};
use tensorc_kvstore::transport::{Transport, TransportError};

/// The folder of a job.
const FOLDER: &str = "TENSORC_TEST_MPI_FOLDER";
/// What the ranks of a job do.
const CHECK: &str = "TENSORC_TEST_MPI_CHECK";
/// How long a job may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Jobs run one after another: each keeps all processors busy.
static ONE_JOB: Mutex<()> = Mutex::new(());

/// How to start processes with the library of this program.
#[derive(Clone, Copy)]
struct Launcher {
    program: &'static str,
    options: &'static [&'static str],
    /// How the others go on when a rank ends early: options, and a program that starts each rank.
    surviving: (&'static [&'static str], &'static [&'static str]),
}

const OPEN_MPI: Launcher = Launcher {
    program: "mpirun.openmpi",
    options: &["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--mca", "oob_tcp_if_include", "lo"],
    surviving: (&["--enable-recovery"], &[]),
};

/// The launcher kills every process that it started when one of them is killed, and sends `SIGUSR1` to their groups.
/// UCX aborts a process that copies from one that is gone.
const MPICH: Launcher = Launcher {
    program: "mpirun.mpich",
    options: &[],
    surviving: (
        &["-disable-auto-cleanup"],
        &["setsid", "-w", "env", "UCX_TLS=self,posix,sysv", "sh", "-c", "\"$@\"; exit 0", "rank"],
    ),
};

/// A launcher that fits the library, if the machine has one.
fn launcher() -> Option<Launcher> {
    let library = library_version().unwrap();
    let (known, banner) = if library.contains("Open MPI") {
        (OPEN_MPI, ["Open MPI", "OpenRTE"])
    } else if library.contains("MPICH") {
        (MPICH, ["HYDRA", "MPICH"])
    } else {
        eprintln!("skipped: no launcher is known for {library}");
        return None;
    };
    let programs = [known.program, "mpirun", "mpiexec"];
    let fits = |program: &&str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|o| banner.iter().any(|b| String::from_utf8_lossy(&o.stdout).contains(b)))
    };
    let found = programs.into_iter().find(fits).map(|program| Launcher { program, ..known });
    if found.is_none() {
        eprintln!("skipped: no launcher for {library}");
    }
    found
}

/// A job that has ended.
struct Job {
    status: ExitStatus,
    output: String,
    /// What each rank wrote.
    notes: Vec<Option<String>>,
}

impl Launcher {
    /// Runs a check with so many ranks.
    fn run(&self, check: &str, ranks: usize, (options, starter): (&[&str], &[&str])) -> Job {
        let _one = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi-{check}-{ranks}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let output = fs::File::create(folder.join("output")).unwrap();
        let mut launcher = Command::new(self.program)
            .args(self.options)
            .args(options)
            .args(["-n", &ranks.to_string()])
            .args(starter)
            .arg(env::current_exe().unwrap())
            .args(["--exact", "rank_of_a_job", "--ignored", "--nocapture"])
            .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"), (CHECK, check)])
            .env(FOLDER, &folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let status = ended(&mut launcher, LIMIT);
        let left = left_behind(&folder);
        left.iter().for_each(|pid| signal(pid, "KILL"));
        let status = status.unwrap_or_else(|| launcher.wait().unwrap());
        let output = fs::read_to_string(folder.join("output")).unwrap();
        let notes = (0..ranks).map(|rank| fs::read_to_string(note(&folder, rank)).ok()).collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, [""; 0], "{check} with {ranks} ranks did not end or left processes:\n{output}");
        Job { status, output, notes }
    }
}

/// Waits for a process, for a time.
fn ended(process: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = process.try_wait().unwrap() {
            return Some(status);
        }
        sleep(Duration::from_millis(20));
    }
    None
}

/// Processes of a job, some time after its launcher has ended.
fn left_behind(folder: &Path) -> Vec<String> {
    let mark = format!("{FOLDER}={}", folder.display()).into_bytes();
    let of_job = |pid: &String| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == mark)
    };
    let mut left = vec![];
    for _ in 0..100 {
        let all = fs::read_dir("/proc").unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        left = all.filter(of_job).collect();
        if left.is_empty() {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    left
}

fn signal(pid: &str, name: &str) {
    Command::new("kill").args(["-s", name, pid]).status().unwrap();
}

fn note(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

/// Each rank's part; does nothing unless a launcher started it.
#[test]
#[ignore = "the other tests start it under a launcher"]
fn rank_of_a_job() {
    let (Ok(check), Some(folder)) = (env::var(CHECK), env::var_os(FOLDER)) else { return };
    let text = match check.as_str() {
        "contract" => contract(),
        "given-up" => given_up(),
        signal => lost_rank(signal, Path::new(&folder)),
    };
    let (rank, text) = text;
    fs::write(note(Path::new(&folder), rank), text).unwrap();
    exit(0);
}

/// The contract of transports, and what is special about MPI; on two threads, one after the other.
fn contract() -> (usize, &'static str) {
    let mut t = thread::spawn(MpiTransport::init).join().unwrap().unwrap();
    assert_eq!(MpiTransport::init().err(), Some(TransportError::Initialised));
    support::check(&mut t);
    let bytes = 1 << 31;
    let too_long = TransportError::TooLong { bytes, limit: bytes - 1 };
    assert_eq!(t.send(0, 0, vec![0; bytes].into()), Err(too_long.clone()));
    assert_eq!(t.receive(0, 0, vec![0; bytes]), Err(too_long));
    // A receive without a message does not keep a group from ending.
    t.receive(0, 77, vec![0; 1000]).unwrap();
    t.close(true);
    let rank = t.rank();
    assert_eq!(t.poll(&mut vec![]), Err(TransportError::Closed { rank }));
    assert_eq!(t.send(0, 0, Bytes::new()), Err(TransportError::Closed { rank }));
    assert_eq!(MpiTransport::init().err(), Some(TransportError::Initialised));
    (rank, "kept")
}

/// Gives up messages of every kind: nobody takes the sends, nobody answers the receives.
fn given_up() -> (usize, &'static str) {
    let mut t = MpiTransport::init().unwrap();
    let rank = t.rank();
    for to in 0..t.size() {
        t.send(to, 1, vec![1; 10].into()).unwrap();
        t.send(to, 2, vec![1; 10 << 20].into()).unwrap();
        t.receive(to, 3, vec![0; 1000]).unwrap();
    }
    for _ in 0..1000 {
        t.poll(&mut vec![]).unwrap();
    }
    if rank.is_multiple_of(2) {
        t.close(false);
    }
    drop(t);
    (rank, "given up")
}

/// The last rank gets a signal. The others go on with messages between them, and nothing of the last one ends.
fn lost_rank(name: &str, folder: &Path) -> (usize, &'static str) {
    let mut t = MpiTransport::init().unwrap();
    let (me, lost) = (t.rank(), t.size() - 1);
    support::check(&mut t);
    if me == lost {
        signal(&std::process::id().to_string(), name);
        sleep(Duration::from_secs(600));
    }
    sleep(Duration::from_millis(500));
    let never = t.receive(lost, 1, vec![0; 1 << 20]).unwrap();
    t.send(lost, 2, Bytes::from_static(b"short")).unwrap();
    t.send(lost, 3, vec![0; 4 << 20].into()).unwrap();
    let (next, last) = ((me + 1) % lost, (me + lost - 1) % lost);
    let (mut received, mut errors, start) = (vec![], vec![], Instant::now());
    for round in 0..100 {
        let bytes = support::content(me, next, 4, round, 100_000);
        t.receive(last, 4, vec![0; bytes.len()]).unwrap();
        t.send(next, 4, bytes.into()).unwrap();
        while received.len() <= round {
            errors.extend(t.poll(&mut received).err());
            assert!(start.elapsed() < Duration::from_secs(30), "round {round}, {errors:?}");
            sleep(Duration::from_micros(20));
        }
        assert_eq!(received[round].bytes, support::content(last, me, 4, round, 100_000));
        sleep(Duration::from_millis(20));
    }
    assert!(received.iter().all(|r| r.id != never));
    println!("rank {me}: {} unsent, errors {errors:?}", t.unsent());
    fs::write(note(folder, me), "survived").unwrap();
    // Every survivor has said so before the first one ends.
    while (0..lost).any(|rank| !note(folder, rank).exists()) {
        t.poll(&mut received).ok();
        sleep(Duration::from_millis(1));
    }
    t.close(false);
    exit(if name == "STOP" { 3 } else { 0 });
}

#[test]
fn jobs_keep_the_contract() {
    let Some(launcher) = launcher() else { return };
    for ranks in 1..=4 {
        let job = launcher.run("contract", ranks, (&[], &[]));
        assert!(job.status.success(), "{ranks} ranks: {}\n{}", job.status, job.output);
        assert_eq!(job.notes, vec![Some("kept".to_owned()); ranks], "{}", job.output);
    }
}

#[test]
fn messages_can_be_given_up() {
    let Some(launcher) = launcher() else { return };
    for ranks in [1, 3] {
        let job = launcher.run("given-up", ranks, launcher.surviving);
        assert_eq!(job.notes, vec![Some("given up".to_owned()); ranks], "{}", job.output);
    }
}

#[test]
fn the_others_survive_a_rank_that_is_killed() {
    let Some(launcher) = launcher() else { return };
    let job = launcher.run("KILL", 4, launcher.surviving);
    let survived = Some("survived".to_owned());
    assert_eq!(job.notes, [survived.clone(), survived.clone(), survived, None], "{}", job.output);
}

#[test]
fn the_others_end_when_a_rank_is_stopped() {
    let Some(launcher) = launcher() else { return };
    let job = launcher.run("STOP", 4, (&[], &[]));
    let survived = Some("survived".to_owned());
    assert_eq!(job.notes, [survived.clone(), survived.clone(), survived, None], "{}", job.output);
}
