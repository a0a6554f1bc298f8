"""Connects with TLS: what the certificate does not cover is refused."""

import sys

import pymongo

uri, ca, db = sys.argv[1:]
client = pymongo.MongoClient(uri, tls=True, tlsCAFile=ca, serverSelectionTimeoutMS=20000, compressors="zlib")
coll = client[db]["py"]
coll.insert_many([{"_id": i, "text": "words " * i} for i in range(200)])
assert sum(1 for _ in coll.find({}, batch_size=50)) == 200

for bad in ({"tls": True}, {"tls": True, "tlsCAFile": ca, "compressors": "zlib"}):
    host = uri.replace("127.0.0.1", "localhost") if "tlsCAFile" in bad else uri
    try:
        pymongo.MongoClient(host, serverSelectionTimeoutMS=1500, **bad).admin.command("ping")
    except pymongo.errors.ServerSelectionTimeoutError as e:
        assert "certificate" in str(e).lower(), e
    else:
        raise AssertionError("connected with " + repr(bad))
print("tls done")
