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
    /// To this command it babbles; what else is asked, it answers.
    Babble(&'static str, Babble),
}

/// What no server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Babble {
    /// 100,000 lists in one another.
    Nested,
    /// A text of so many bytes is announced, and never comes.
    Text(u64),
    /// A list of so many elements is announced, and never comes.
    List(u64),
    /// A line without an end.
    Endless,
    /// A text of -5 bytes.
    Negative,
    /// Another protocol.
    Http,
}

impl Babble {
    pub(crate) const ALL: [Self; 6] = [
        Self::Nested,
        Self::Text(999_999_999_999),
        Self::List(1_000_000_000),
        Self::Endless,
        Self::Negative,
        Self::Http,
    ];

    /// How we call it.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Nested => "lists are more than 8 deep in one another",
            Self::Text(_) => "it announced a text of 999999999999 bytes",
            Self::List(_) => "it announced a list of 1000000000 elements",
            Self::Endless => "a line has no end after 16384 bytes",
            Self::Negative => "\"$-5\" is no number and no length",
            Self::Http => "a reply begins with \"HTTP/1.1 400 Bad Request\"",
        }
    }

    /// Until the other end hangs up; how many bytes it took.
    fn say(self, to: &mut TcpStream) -> usize {
        let once = match self {
            Self::Nested => "*1\r\n".repeat(100_000),
            Self::Text(length) => format!("${length}\r\n"),
            Self::List(length) => format!("*{length}\r\n"),
            Self::Endless => "+".to_owned(),
            Self::Negative => "$-5\r\n".to_owned(),
            Self::Http => "HTTP/1.1 400 Bad Request\r\n\r\n".to_owned(),
        };
        let mut taken = 0;
        let mut next = once.as_bytes();
        while let Ok(length @ 1..) = to.write(next) {
            taken += length;
            next = if self == Self::Endless { &[b'x'; 64 * 1024] } else { &next[length..] };
        }
        taken
    }
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
    /// The most bytes of babble that were taken off it on one connection.
    pub(crate) taken: Arc<AtomicUsize>,
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
            taken: Arc::default(),
            ended: Arc::default(),
        };
        let (spends, connections, ended) =
            (fake.spends.clone(), fake.connections.clone(), fake.ended.clone());
        let (last, taken) = (fake.last.clone(), fake.taken.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                connections.fetch_add(1, Ordering::SeqCst);
                let (spends, last, taken) = (spends.clone(), last.clone(), taken.clone());
                std::thread::spawn(move || serve(stream, treatment, &spends, &last, &taken));
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
fn serve(
    stream: TcpStream,
    treatment: Treatment,
    spends: &AtomicUsize,
    last: &Mutex<Vec<String>>,
    taken: &AtomicUsize,
) {
    let mut writer = stream.try_clone().expect("a second handle of a socket");
    let mut reader = BufReader::new(stream);
    while let Some(words) = read_command(&mut reader) {
        let command = words[0].to_ascii_uppercase();
        if let Treatment::Babble(to, babble) = treatment
            && command == to
        {
            taken.fetch_max(babble.say(&mut writer), Ordering::SeqCst);
            return;
        }
        let answer = match command.as_str() {
            "PING" => "+PONG\r\n".to_owned(),
            "AUTH" | "SELECT" => "+OK\r\n".to_owned(),
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
                    Treatment::WantKeys | Treatment::Babble(..) => {
                        "*3\r\n:100\r\n$1\r\n\u{1}\r\n$1\r\n-\r\n".to_owned()
                    }
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
