//! Who may in: passwords, ACL users, databases, sockets, TLS.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tollgate::{
    settings::{Secret, Socket},
    store::{
        Store,
        redis::{Auth, Hostname, RedisConfig, RedisStore, RedisTls},
    },
};

use crate::{config, connected, eventually, spend, support::redis::RedisServer};

/// What `store/redis.rs` says that a user needs.
const RIGHTS: [&str; 7] = ["~tg:*", "+evalsha", "+script|load", "+time", "+get", "+set", "+del"];

fn text(auth: &str) -> Option<Auth> {
    Some(Auth::Text(Secret::new(auth)))
}

#[tokio::test]
async fn an_acl_user_with_the_least_rights_may_spend() {
    let server = RedisServer::start(&[]);
    let mut set_user = vec!["ACL", "SETUSER", "ann", "on", ">s3cret:word"];
    set_user.extend(RIGHTS);
    assert_eq!(server.command(&set_user), "OK");
    let config = RedisConfig { auth: text("ann:s3cret:word"), ..config(server.address()) };
    let store = connected(&config).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(true));
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(false));
    assert!(!format!("{store:?} {config:?}").contains("s3cret"));
    let by_url = format!("redis://ann:s3cret%3Aword@{}", server.address());
    assert_eq!(spend(&connected(&crate::config(by_url)).await, "tg:b", 1).await, Ok(true));
}

#[tokio::test]
async fn a_key_that_the_user_may_not_touch_is_refused() {
    let server = RedisServer::start(&[]);
    let mut set_user = vec!["ACL", "SETUSER", "ann", "on", ">pw", "~other:*"];
    set_user.extend(&RIGHTS[1..]);
    server.command(&set_user);
    let store = connected(&RedisConfig { auth: text("ann:pw"), ..config(server.address()) }).await;
    let error = spend(&store, "tg:a", 1).await.unwrap_err().to_string();
    // Each version has its own words for it.
    let told = error.contains("NOPERM") || error.contains("can't access at least one of the keys");
    assert!(error.contains("refused: ") && told, "{error}");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_told_and_never_shown() {
    let server = RedisServer::start(&["--requirepass", "right"]);
    for (auth, word) in [(text("hunter2"), "WRONGPASS"), (None, "NOAUTH")] {
        let store = RedisStore::new(&RedisConfig { auth, ..config(server.address()) }).unwrap();
        store.connect_here();
        eventually(word, async || format!("{:?}", store.health()).contains(word)).await;
        let error = spend(&store, "tg:a", 1).await.unwrap_err();
        assert!(error.to_string().contains(&format!("refused: {word}")), "{error}");
        let all = format!("{error} {error:?} {store:?} {:?}", store.health());
        assert!(!all.contains("hunter2"), "{all}");
        assert!(!store.reach().borrow().once);
    }
    let right = RedisConfig { auth: text("right"), ..config(server.address()) };
    assert_eq!(spend(&connected(&right).await, "tg:a", 1).await, Ok(true));
}

#[tokio::test]
async fn a_password_that_is_changed_in_its_file_needs_no_restart() {
    let server = RedisServer::start(&[]);
    server.command(&["ACL", "SETUSER", "ann", "on", ">0ld-one", "~*", "+@all"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("auth");
    std::fs::write(&file, "ann:0ld-one\n").unwrap();
    let auth = Some(Auth::File(file.clone()));
    let store = connected(&RedisConfig { auth, ..config(server.address()) }).await;
    assert_eq!(spend(&store, "tg:a", 2).await, Ok(true));
    server.command(&["ACL", "SETUSER", "ann", "resetpass", ">n3w-one"]);
    server.command(&["CLIENT", "KILL", "USER", "ann"]);
    eventually("the old one is refused", async || format!("{:?}", store.health()).contains("WRONGPASS"))
        .await;
    std::fs::write(&file, "ann:n3w-one").unwrap();
    eventually("the new one is used", async || store.health()[0].state.is_ok()).await;
    assert_eq!(spend(&store, "tg:a", 2).await, Ok(true));
    assert!(!format!("{store:?}").contains("n3w"));
}

#[tokio::test]
async fn certificates_are_read_again_for_each_connection() {
    let (files, stranger) = (Files::new("ours"), Files::new("another"));
    let server = files.server("yes");
    let ours = std::fs::read_to_string(files.path("ca.pem")).unwrap();
    files.write("ca.pem", &std::fs::read_to_string(stranger.path("ca.pem")).unwrap());
    let store = RedisStore::new(&files.config(&server, "localhost", files.tls())).unwrap();
    store.connect_here();
    eventually("it is a stranger's", async || format!("{:?}", store.health()).contains("REDIS_TLS_CACERT"))
        .await;
    std::fs::remove_file(files.path("ca.pem")).unwrap();
    eventually("it is missing", async || format!("{:?}", store.health()).contains("cannot read")).await;
    files.write("ca.pem", &ours);
    eventually("it is ours", async || store.health()[0].state.is_ok()).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(true));
}

#[tokio::test]
async fn the_name_in_the_certificate_may_be_set() {
    let files = Files::new("ours");
    let server = files.server("yes");
    let named = RedisTls { server_name: Some("localhost".to_owned()), ..files.tls() };
    let store = connected(&files.config(&server, "127.0.0.1", named)).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(true));
}

#[tokio::test]
async fn a_server_that_knows_no_auth_does_not_make_us_show_the_password() {
    // It repeats what it did not understand, in up to 128 characters.
    let server = RedisServer::start(&["--rename-command", "AUTH", ""]);
    for auth in ["hunter2".to_owned(), "ann:hunter2".to_owned(), "hunter2".repeat(30)] {
        let config = RedisConfig { auth: text(&auth), ..config(server.address()) };
        let store = RedisStore::new(&config).unwrap();
        store.connect_here();
        eventually(&auth, async || format!("{:?}", store.health()).contains("unknown command")).await;
        let error = spend(&store, "tg:a", 1).await.unwrap_err();
        let all = format!("{error} {error:?} {store:?} {:?}", store.health());
        assert!(!all.contains("hunter2"), "{all}");
    }
}

#[tokio::test]
async fn the_database_of_the_url_is_used() {
    let server = RedisServer::start(&[]);
    let store = connected(&config(format!("redis://{}/3", server.address()))).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(true));
    let keyspace = server.command(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db3:keys=1"), "{keyspace}");
}

#[tokio::test]
async fn a_unix_socket_is_as_good_as_a_port() {
    let server = RedisServer::start(&["--unixsocket", "redis.sock"]);
    let path = server.dir().join("redis.sock").display().to_string();
    for socket in [None, Some(Socket::Unix)] {
        let store = connected(&RedisConfig { socket, ..config(path.clone()) }).await;
        assert!(spend(&store, "tg:a", 10).await.is_ok());
        assert_eq!(store.health()[0].shard, format!("unix:{path}"));
    }
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own_and_a_client_certificate() {
    let files = Files::new("ours");
    let server = files.server("yes");
    let store = connected(&files.config(&server, "localhost", files.tls())).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(true));
    // REDIS_TLS=true and host:port says the same as rediss://.
    let url = format!("localhost:{}", server.port);
    let store = connected(&RedisConfig { tls: Some(files.tls()), ..config(url) }).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(false));
}

#[tokio::test]
async fn tls_errors_name_the_setting_that_mends_them() {
    let files = Files::new("ours");
    let server = files.server("yes");
    // An authority of another name, and one that took the name over with a new key.
    let (stranger, impostor) = (Files::new("another"), Files::new("ours"));
    let no_certificate = RedisTls { ca: files.tls().ca, ..RedisTls::default() };
    for (host, tls, setting) in [
        ("localhost", RedisTls { ca: stranger.tls().ca, ..files.tls() }, "REDIS_TLS_CACERT"),
        ("localhost", RedisTls { ca: impostor.tls().ca, ..files.tls() }, "REDIS_TLS_CACERT"),
        ("127.0.0.1", files.tls(), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
        ("localhost", no_certificate, "REDIS_TLS_CLIENT_CERT"),
    ] {
        let store = RedisStore::new(&files.config(&server, host, tls)).unwrap();
        store.connect_here();
        eventually(setting, async || format!("{:?}", store.health()).contains(setting)).await;
    }
    let plain = RedisServer::start(&[]);
    let store = RedisStore::new(&RedisConfig {
        connect_timeout: Duration::from_millis(200),
        ..files.config(&plain, "localhost", files.tls())
    })
    .unwrap();
    store.connect_here();
    eventually("it fails", async || format!("{:?}", store.health()).contains("does it speak TLS")).await;
}

#[tokio::test]
async fn a_skipped_hostname_still_wants_a_good_chain() {
    let files = Files::new("ours");
    let server = files.server("no");
    let skipped = RedisTls { ca: files.tls().ca, hostname: Hostname::Skipped, ..RedisTls::default() };
    let store = connected(&files.config(&server, "127.0.0.1", skipped.clone())).await;
    assert_eq!(spend(&store, "tg:a", 1).await, Ok(true));
    let stranger = Files::new("another");
    let strange = RedisTls { ca: stranger.tls().ca, ..skipped };
    let store = RedisStore::new(&files.config(&server, "127.0.0.1", strange)).unwrap();
    store.connect_here();
    eventually("it fails", async || format!("{:?}", store.health()).contains("REDIS_TLS_CACERT")).await;
}

#[test]
fn a_missing_or_wrong_tls_file_is_a_wrong_setting() {
    let files = Files::new("ours");
    let none = Some(PathBuf::from("/nowhere/ca.pem"));
    let other = Files::new("ours");
    let junk = files.write("junk.pem", "no certificate");
    let good = files.tls();
    for (tls, setting, why) in [
        (RedisTls { ca: none.clone(), ..good.clone() }, "REDIS_TLS_CACERT", "/nowhere/ca.pem"),
        (RedisTls { ca: Some(junk.clone()), ..good.clone() }, "REDIS_TLS_CACERT", "no PEM certificate"),
        (RedisTls { client_key: Some(junk), ..good.clone() }, "REDIS_TLS_CLIENT_KEY", "junk.pem"),
        (RedisTls { client_key: None, ..good.clone() }, "REDIS_TLS_CLIENT_KEY", "missing"),
        (RedisTls { client_cert: None, ..good.clone() }, "REDIS_TLS_CLIENT_CERT", "missing"),
        (RedisTls { client_key: other.tls().client_key, ..good }, "REDIS_TLS_CLIENT_KEY", ""),
    ] {
        let config = RedisConfig { tls: Some(tls), ..config("rediss://localhost") };
        let error = RedisStore::new(&config).unwrap_err();
        assert!(error.setting == setting && error.why.contains(why), "{error}");
    }
}

/// An authority with a certificate for a server called `localhost`, which serves as the client's too.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(authority: &str) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // OpenSSL takes a certificate whose issuer has its own name for one that signed itself.
        params.distinguished_name.push(DnType::CommonName, authority);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        files.write("ca.pem", &authority.pem());
        files.write("cert.pem", &certificate.pem());
        files.write("key.pem", &key.serialize_pem());
        files
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.dir.path()).join(name)
    }

    /// `auth_clients` is `yes` or `no`.
    fn server(&self, auth_clients: &str) -> RedisServer {
        let path = |name| self.path(name).display().to_string();
        RedisServer::start(&[
            "--tls-port",
            "PORT",
            "--tls-auth-clients",
            auth_clients,
            "--tls-ca-cert-file",
            &path("ca.pem"),
            "--tls-cert-file",
            &path("cert.pem"),
            "--tls-key-file",
            &path("key.pem"),
        ])
    }

    fn tls(&self) -> RedisTls {
        let path = |name| Some(self.path(name));
        RedisTls {
            ca: path("ca.pem"),
            client_cert: path("cert.pem"),
            client_key: path("key.pem"),
            hostname: Hostname::Verified,
            server_name: None,
        }
    }

    fn config(&self, server: &RedisServer, host: &str, tls: RedisTls) -> RedisConfig {
        RedisConfig { tls: Some(tls), ..config(format!("rediss://{host}:{}", server.port)) }
    }
}
