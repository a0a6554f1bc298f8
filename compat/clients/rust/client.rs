//! The Rust driver through every step of ../README.md.

use std::collections::HashSet;
use std::env::var;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use mongodb::bson::{doc, Bson, Document};
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::event::command::CommandEvent;
use mongodb::event::EventHandler;
use mongodb::options::{ClientOptions, ReadPreference, ReturnDocument, SelectionCriteria};
use mongodb::{Client, Collection};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn done(step: &str, n: impl std::fmt::Display) {
    println!("step {step} {n}");
}

fn things(client: &Client) -> Collection<Document> {
    client.database(&var("DB").unwrap()).collection("c")
}

fn many(client: &Client) -> Collection<Document> {
    let ns = var("MANY").unwrap();
    let (db, coll) = ns.split_once('.').unwrap();
    client.database(db).collection(coll)
}

/// What the driver says of its commands.
#[derive(Default)]
struct Said {
    begun: Vec<String>,
    ended: Vec<String>,
    modes: Vec<String>,
    services: HashSet<String>,
}

async fn connect(uri: &str, more: &str) -> Result<(Client, Arc<Mutex<Said>>)> {
    let mut options = ClientOptions::parse(format!("{}{more}", var(uri)?)).await?;
    let said = Arc::new(Mutex::new(Said::default()));
    let note = said.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event: CommandEvent| {
        let mut said = note.lock().unwrap();
        match event {
            CommandEvent::Started(e) => {
                let mode = e.command.get_document("$readPreference").and_then(|p| p.get_str("mode")).unwrap_or("primary");
                said.modes.push(mode.to_string());
                said.begun.push(e.command_name);
                said.services.insert(e.service_id.map_or("none".to_string(), |id| id.to_hex()));
            }
            CommandEvent::Succeeded(e) => said.ended.push(e.command_name),
            CommandEvent::Failed(e) => said.ended.push(e.command_name + " failed"),
            _ => {}
        }
    }));
    Ok((Client::with_options(options)?, said))
}

fn number(d: &Document, field: &str) -> i64 {
    match d.get(field) {
        Some(Bson::Int32(n)) => i64::from(*n),
        Some(Bson::Int64(n)) => *n,
        other => panic!("{field} is {other:?}"),
    }
}

async fn several() -> Result<()> {
    let (client, _) = connect("URI_SEVERAL", "").await?;
    let c = things(&client);
    assert_eq!(c.find_one(doc! {"_id": "nobody"}).await?, None);
    // The driver does not show its view of the cluster: each host answers by itself.
    let hosts = var("URI_SEVERAL")?;
    let mut n = 0;
    for host in hosts.trim_start_matches("mongodb://").trim_end_matches('/').split(',') {
        let one = Client::with_uri_str(format!("mongodb://{host}/")).await?;
        assert_eq!(one.database("admin").run_command(doc! {"hello": 1}).await?.get_str("msg")?, "isdbgrid");
        n += 1;
    }
    done("several", n);
    crud(&c).await?;
    bulk(&c).await?;
    cursor(&client).await
}

async fn crud(c: &Collection<Document>) -> Result<()> {
    assert_eq!(c.insert_one(doc! {"_id": "a", "n": 1}).await?.inserted_id, Bson::from("a"));
    assert_eq!(c.find_one(doc! {"_id": "a"}).await?, Some(doc! {"_id": "a", "n": 1}));
    assert_eq!(c.update_one(doc! {"_id": "a"}, doc! {"$inc": {"n": 1}}).await?.modified_count, 1);
    assert_eq!(c.update_one(doc! {"_id": "b"}, doc! {"$set": {"n": 5}}).upsert(true).await?.upserted_id, Some(Bson::from("b")));
    let found = c.find_one_and_update(doc! {"_id": "b"}, doc! {"$inc": {"n": 1}}).return_document(ReturnDocument::After).await?;
    assert_eq!(number(&found.unwrap(), "n"), 6);
    assert_eq!(c.replace_one(doc! {"_id": "a"}, doc! {"n": 7}).await?.modified_count, 1);
    let list: Vec<Document> = c.find(doc! {"n": {"$gte": 6}}).sort(doc! {"n": -1}).await?.try_collect().await?;
    assert_eq!(list.iter().map(|d| number(d, "n")).collect::<Vec<_>>(), [7, 6]);
    let stages = [doc! {"$match": {"n": {"$gt": 0}}}, doc! {"$group": {"_id": null, "sum": {"$sum": "$n"}}}];
    assert_eq!(number(&c.aggregate(stages).await?.next().await.unwrap()?, "sum"), 13);
    let error = c.insert_one(doc! {"_id": "a"}).await.unwrap_err();
    assert!(matches!(*error.kind, ErrorKind::Write(WriteFailure::WriteError(ref e)) if e.code == 11000), "{error}");
    assert_eq!(c.delete_many(doc! {"n": {"$exists": true}}).await?.deleted_count, 2);
    done("crud", 10);
    Ok(())
}

/// The driver's own bulk writes are the command bulkWrite, which MongoDB has since 8.0; so this is insert_many with errors, and what the others do
/// in one call.
async fn bulk(c: &Collection<Document>) -> Result<()> {
    let docs = (0..1000).map(|i| doc! {"_id": i, "bulk": 1});
    assert_eq!(c.insert_many(docs).ordered(false).await?.inserted_ids.len(), 1000);
    let error = c.insert_many([doc! {"_id": 1000, "bulk": 1}, doc! {"_id": 3}, doc! {"_id": 1001, "bulk": 1}]).ordered(false).await.unwrap_err();
    match *error.kind {
        ErrorKind::InsertMany(ref e) => {
            let failed: Vec<_> = e.write_errors.as_ref().unwrap().iter().map(|e| (e.index, e.code)).collect();
            assert_eq!(failed, [(1, 11000)]);
        }
        _ => panic!("{error}"),
    }
    assert_eq!(c.update_many(doc! {"bulk": 1, "_id": {"$lt": 500}}, doc! {"$set": {"half": 1}}).await?.modified_count, 500);
    assert_eq!(c.delete_one(doc! {"_id": 7}).await?.deleted_count, 1);
    done("bulk", c.count_documents(doc! {"bulk": 1}).await?);
    Ok(())
}

async fn cursor(client: &Client) -> Result<()> {
    let mut cursor = many(client).find(doc! {}).batch_size(5000).await?;
    let (mut n, mut sum) = (0, 0);
    while cursor.advance().await? {
        n += 1;
        sum += i64::from(cursor.current().get_i32("_id")?);
    }
    assert_eq!(sum, 4999950000);
    done("cursor", n);
    Ok(())
}

async fn large() -> Result<()> {
    let (client, _) = connect("URI_ONE", "").await?;
    let c = things(&client);
    let s = "x".repeat(16 * 1024 * 1024 - 22);
    c.insert_one(doc! {"_id": 5000, "s": &s}).await?;
    let (other, _) = connect("URI_OTHER", "").await?;
    assert!(things(&other).find_one(doc! {"_id": 5000}).await?.unwrap().get_str("s")? == s);
    assert!(c.insert_one(doc! {"_id": 5001, "s": format!("{s}x")}).await.is_err());
    assert_eq!(c.count_documents(doc! {"_id": 5001}).await?, 0);
    done("large", s.len() + 22);
    Ok(())
}

async fn compression() -> Result<()> {
    let text = "words ".repeat(20000);
    let names = ["snappy", "zlib", "zstd"];
    for name in names {
        let (client, _) = connect("URI_WATCHED", &format!("?compressors={name}")).await?;
        let c = things(&client);
        c.insert_one(doc! {"_id": name, "text": &text}).await?;
        assert_eq!(c.find_one(doc! {"_id": name}).await?.unwrap().get_str("text")?, text);
    }
    done("compression", names.len());
    Ok(())
}

async fn preferences() -> Result<()> {
    let (client, said) = connect("URI_ONE", "").await?;
    let modes = [
        ("primary", ReadPreference::Primary),
        ("primaryPreferred", ReadPreference::PrimaryPreferred { options: None }),
        ("secondaryPreferred", ReadPreference::SecondaryPreferred { options: None }),
        ("nearest", ReadPreference::Nearest { options: None }),
    ];
    let names: Vec<_> = modes.iter().map(|(name, _)| name.to_string()).collect();
    for (_, mode) in modes {
        let cursor = things(&client).find(doc! {"bulk": 1}).batch_size(5000).selection_criteria(SelectionCriteria::ReadPreference(mode)).await?;
        assert_eq!(cursor.try_collect::<Vec<_>>().await?.len(), 1001);
    }
    assert_eq!(said.lock().unwrap().modes, names);
    done("preferences", names.len());
    Ok(())
}

async fn monitoring() -> Result<()> {
    let (client, said) = connect("URI_ONE", "").await?;
    let list: Vec<Document> = things(&client).find(doc! {"bulk": 1}).batch_size(600).await?.try_collect().await?;
    assert_eq!(list.len(), 1001);
    let error = client.database("admin").run_command(doc! {"noSuchCommand": 1}).await.unwrap_err();
    assert!(matches!(*error.kind, ErrorKind::Command(ref e) if e.code == 59), "{error}");
    let said = said.lock().unwrap();
    assert_eq!(said.begun, ["find", "getMore", "noSuchCommand"]);
    assert_eq!(said.ended, ["find", "getMore", "noSuchCommand failed"]);
    done("monitoring", said.begun.len());
    Ok(())
}

async fn balanced() -> Result<()> {
    let (client, said) = connect("URI_BALANCED", "?loadBalanced=true").await?;
    let plain: Collection<Document> = client.database(&var("DB")?).collection("plain");
    let counts = join_all((0..4).map(|i| {
        let (client, plain) = (client.clone(), plain.clone());
        async move {
            let mut session = client.start_session().await?;
            session.start_transaction().await?;
            plain.insert_one(doc! {"_id": 2000 + i}).session(&mut session).await?;
            let mut cursor = plain.find(doc! {"_id": {"$lt": 1000}}).batch_size(100).session(&mut session).await?;
            let mut n = 0;
            while cursor.next(&mut session).await.transpose()?.is_some() {
                n += 1;
            }
            session.commit_transaction().await?;
            let found: Vec<Document> = many(&client).find(doc! {}).sort(doc! {"_id": 1}).limit(1000).batch_size(100).await?.try_collect().await?;
            Result::Ok(n + found.len())
        }
    }))
    .await;
    let counts = counts.into_iter().collect::<Result<Vec<usize>>>()?;
    assert_eq!(plain.count_documents(doc! {"_id": {"$gte": 2000}}).await?, 4);
    let said = said.lock().unwrap();
    assert!(!said.services.is_empty() && !said.services.contains("none"), "no serviceId");
    done("balanced", counts.iter().sum::<usize>());
    Ok(())
}

async fn retry() -> Result<()> {
    let (client, _) = connect("URI_FAILING", "").await?;
    let c = things(&client);
    done("ready", 1);
    while c.find_one(doc! {"_id": "go"}).await?.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut n = 0;
    while c.find_one(doc! {"_id": "stop"}).await?.is_none() {
        c.insert_one(doc! {"_id": format!("retry {n}")}).await?;
        assert_eq!(c.update_one(doc! {"_id": "counter"}, doc! {"$inc": {"writes": 1}}).await?.modified_count, 1);
        n += 1;
    }
    done("retry", n);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    several().await?;
    large().await?;
    compression().await?;
    preferences().await?;
    monitoring().await?;
    balanced().await?;
    retry().await
}
