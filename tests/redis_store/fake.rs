//! A server that speaks enough Redis to be connected to, counts the spends that reach it, and treats them badly.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// What becomes of a spend, once it was counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// The connection is closed without an answer.
    HangUp,
    /// There is no answer, ever.
    Silence,
    /// This, which the script never says.
    Say(&'static str),
    /// As a server whose scripts may use declared keys only; one key that nobody has used.
    WantKeys,
    /// `-NOSCRIPT`, however often the script is loaded.
    Forget,
}

/// Listens until it is dropped.
pub(crate) struct FakeRedis {
    port: u16,
    /// How many EVALSHA arrived.
    pub(crate) spends: Arc<AtomicUsize>,
    /// How many connections were accepted.
    pub(crate) connections: Arc<AtomicUsize>,
    /// The words of the last EVALSHA.
    pub(crate) last: Arc<Mutex<Vec<String>>>,
    ended: Arc<AtomicBool>,
}

impl FakeRedis {
    pub(crate) fn start(treatment: Treatment) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let fake = Self {
            port,
            spends: Arc::default(),
            connections: Arc::default(),
            last: Arc::default(),
            ended: Arc::default(),
        };
        let (spends, connections, ended) =
            (fake.spends.clone(), fake.connections.clone(), fake.ended.clone());
        let last = fake.last.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                connections.fetch_add(1, Ordering::SeqCst);
                let (spends, last) = (spends.clone(), last.clone());
                std::thread::spawn(move || serve(stream, treatment, &spends, &last));
            }
        });
        fake
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for FakeRedis {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the listener, so that it sees the end.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Until the client or the treatment ends it.
fn serve(stream: TcpStream, treatment: Treatment, spends: &AtomicUsize, last: &Mutex<Vec<String>>) {
    let mut writer = stream.try_clone().expect("a second handle of a socket");
    let mut reader = BufReader::new(stream);
    while let Some(words) = read_command(&mut reader) {
        let answer = match words[0].to_ascii_uppercase().as_str() {
            "PING" => "+PONG\r\n".to_owned(),
            "CLIENT" => ":1\r\n".to_owned(),
            "SCRIPT" => format!("$40\r\n{}\r\n", "0".repeat(40)),
            "EVALSHA" => {
                last.lock().expect("nobody panics with it").clone_from(&words);
                spends.fetch_add(1, Ordering::SeqCst);
                match treatment {
                    Treatment::HangUp => return,
                    Treatment::Silence => continue,
                    Treatment::Say(answer) => answer.to_owned(),
                    Treatment::WantKeys if words[2] == "0" => {
                        let why = "!ERR script tried accessing undeclared key\n";
                        format!("*3\r\n:100\r\n$1\r\n\0\r\n${}\r\n{why}\r\n", why.len())
                    }
                    Treatment::WantKeys => "*3\r\n:100\r\n$1\r\n\u{1}\r\n$1\r\n-\r\n".to_owned(),
                    Treatment::Forget => "-NOSCRIPT No matching script.\r\n".to_owned(),
                }
            }
            _ => "$0\r\n\r\n".to_owned(),
        };
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// One command as clients send it, an array of bulk strings; `None` at the end of the connection.
fn read_command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let count = read_length(reader)?;
    (0..count)
        .map(|_| {
            let mut text = vec![0; read_length(reader)? + 2];
            reader.read_exact(&mut text).ok()?;
            text.truncate(text.len() - 2);
            Some(String::from_utf8_lossy(&text).into_owned())
        })
        .collect()
}

/// `*3` or `$7`.
fn read_length(reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().get(1..)?.parse().ok()
}
