//! The Redis store against real servers.

mod support;

use support::redis::RedisServer;

#[test]
fn a_server_of_the_test_answers_and_ends() {
    let mut server = RedisServer::start(&[]);
    assert_eq!(server.command(&["PING"]), "PONG");
    server.kill();
    server.restart();
    assert_eq!(server.command(&["SET", "a", "b"]), "OK");
    assert_eq!(server.command(&["MGET", "a", "b"]), "b\n(nil)");
}
