//! Following the log.

use relevo_core::outbox::search::{OutboxSearch as _, TailFilter, TailPage};

use crate::scratch::{TempDirectory, connect, draft, emit_one, operator, outbox, run};

#[tokio::test]
async fn a_tail_returns_every_message_once_and_survives_retention() {
    let scratch = TempDirectory::new();
    drop(outbox(&scratch.file(), 1).await);
    let operator = operator(&scratch.file()).await;
    let mut connection = connect(&scratch.file()).await;
    let keys = |page: &TailPage| page.messages.iter().map(|message| message.key.clone()).collect::<Vec<_>>();
    for key in ["a", "b", "a"] {
        emit_one(&mut connection, draft(key)).await;
    }
    let all = TailFilter::default();
    let first = operator.tail(&all, None, 2).await.expect("a page");
    assert_eq!(keys(&first), ["b", "a"]);
    for key in ["c", "d", "a"] {
        emit_one(&mut connection, draft(key)).await;
    }
    let second = operator.tail(&all, Some(&first.next), 2).await.expect("a page");
    assert_eq!((keys(&second), second.more), (vec!["c".to_owned(), "d".to_owned()], true));
    let of_a = TailFilter { key: Some("a".to_owned()), ..TailFilter::default() };
    let third = operator.tail(&of_a, Some(&second.next), 2).await.expect("a page");
    assert_eq!((keys(&third), third.more), (vec!["a".to_owned()], false));
    run(&scratch.file(), "DELETE FROM relevo_message").await;
    let fourth = operator.tail(&all, Some(&third.next), 2).await.expect("a page");
    assert_eq!(fourth.messages, []);
    emit_one(&mut connection, draft("e")).await;
    assert_eq!(keys(&operator.tail(&all, Some(&fourth.next), 2).await.expect("a page")), ["e"]);
}
