//! A headless Chromium, driven by the DevTools protocol over a pipe: messages are JSON and end in a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Names under which Chromium is installed.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// How long anything may take in the browser.
const PATIENCE: Duration = Duration::from_secs(60);

/// A page in a browser.
pub struct Browser {
    process: Child,
    send: ChildStdin,
    receive: BufReader<ChildStdout>,
    session: Option<String>,
    serial: u64,
    _profile: tempfile::TempDir,
}

/// The browser of this machine: `$TENSORC_TEST_BROWSER`, or the first of [`NAMES`] in the path.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TENSORC_TEST_BROWSER") {
        return Some(named.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let all = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.into_iter().find(|path| path.is_file())
}

impl Browser {
    /// Starts a browser; `None`, after a visible line, where there is none.
    pub fn start() -> Option<Browser> {
        let Some(program) = program() else {
            tensorc_tests::cache::visible("skipped: there is no Chromium");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // The browser reads from descriptor 3 and writes to descriptor 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut process = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, receive) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut browser = Browser { process, send, receive, session: None, serial: 0, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", json!({}));
        Some(browser)
    }

    /// The result of a command.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.serial += 1;
        let mut message = json!({ "id": self.serial, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.send.write_all(format!("{message}\0").as_bytes()).unwrap();
        self.send.flush().unwrap();
        loop {
            let mut bytes = vec![];
            self.receive.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            if answer["id"] == json!(self.serial) {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression of the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let found = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(found["exceptionDetails"].is_null(), "{expression}: {}", found["exceptionDetails"]);
        found["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != json!(true) {
            assert!(start.elapsed() < PATIENCE, "it did not come to {expression}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens a file, with the colours that a user prefers, and waits until its script has done all.
    pub fn open(&mut self, file: &Path, colours: &str) {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": colours }] });
        self.call("Emulation.setEmulatedMedia", media);
        let size = json!({ "width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.call("Page.navigate", json!({ "url": format!("file://{}", file.canonicalize().unwrap().display()) }));
        self.wait("Boolean(document.documentElement && document.documentElement.dataset.complete)");
    }

    /// Presses a key.
    pub fn key(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let text = if code == 0 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types a text.
    pub fn text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Nothing is left to do for one that has ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
