// Package leaseredis keeps sessions, leases and messages on Redis 6.2 or newer, or on a
// Redis Cluster, over the application's own go-redis client.
//
// # What it guarantees
//
// On one server whose append-only file is on, or on a cluster as long as no failover drops
// acknowledged writes: every published message is handled, a dead letter with its reason, or still
// pending; it is delivered at least once, in order within its topic, and within its key across
// topics. An owner that was paused or cut off has no effect: every write carries the
// epoch of its lease and is refused by the script that would make it when the epoch is old.
// Epochs are at least the server's clock in microseconds, so that they rise even when a
// replica that missed the last ones is promoted.
//
// A failover of Redis itself is asynchronous: a promoted replica may lack the last
// acknowledged writes. Messages among them are lost, cursors among them make messages come twice, and a
// lease among them can have two owners who both believe in it until the heartbeat of the
// first one fails. So ownership on Redis is for efficiency; where correctness hangs on it,
// check Message.Epoch at the resource itself.
//
// # How it works
//
// All keys of a namespace begin with one of a fixed number of hash tags, {lg0}, {lg1} and so
// on. A topic, a stream and a consumer belong to one tag each. Every transition
// is one script on the keys of one tag (scripts/*.lua), which can be repeated: a lost reply
// is no danger. A lease is kept under the tag of its resource's name (of the consumer's, when it is
// the one resource of a group or cluster consumer), wherever its messages are. A process has one
// entry per tag and one heartbeat for it, whatever it owns.
//
// The heartbeats go over connections of their own, and each process has one more to each server: when that is gone, and the process has noted
// no other, others end its session, long before its TTL (see watch.go). When the nodes of a shard are lost and no process takes
// their place, processes go on with the tags that are left (a group, a partition and a stream read
// from all tags, and wait), and enter the others when they are back. When a server's memory is full,
// publishing fails, and leases, progress and trimming go on. LockAdvisory is held as LockSession is:
// on Redis no lock costs less.
//
// Messages are entries of Redis streams, read by a cursor that moves with the fenced
// commit: there are no consumer groups, so no message is pending twice, none is claimed from an owner
// who is merely slow, and order survives retries.
// Their ids are the server's clock in microseconds, or one more than the last.
//
// A consumer that does not read by topic has a view: who publishes copies matching messages, in
// the same script, to the stream of the resource they belong to, under the topic's own tag. A
// resource whose messages come from several tags is read from all at once, and gets them in
// the order of ids up to the least that any of the tags can still give. So that this loses no
// time and keeps cause before effect, each process raises the ids of a tag above those it has
// seen under others. Messages that all consumers of a topic have passed are trimmed, about once a second
// by who reads it, and by Maintain.
//
// A consumer that is registered for the first time has its view filled with what topics hold. One whose
// patterns are widened later gets what is published from then on: update a process of it before
// those that publish on the new topics. Owners of an older version set these messages aside, for one
// that knows them. A pattern that no process has had for ten minutes is dropped.
//
// A process looks for news of a tag when a script has published a hint on its channel, and every
// few seconds in case that was lost.
//
// # Keys
//
// Behind the tag; µs are by the server's clock, <consumer> is the consumer's name and stands before
// names that may contain colons.
//
//	meta                          hash: layout, tags, slots, namespace, last (id of the last message), dead
//	                              (number of the last dead letter), ownership, replays (how often feeds were
//	                              to learn of these)
//	                              clock (µs that a heartbeat has noted), shift and shifted (by how much the server's clock
//	                              was set back, and when)
//	none                          never exists, see script.go
//	sessions                      zset: session id by expiry, of those not declared dead
//	ring                          zset: sessions that have noted a connection, each with the score 0
//	s:<session>                   hash: ttl, opened, beat (µs), host, pid, consumers (joined by newlines), topics
//	                              (patterns by consumer, as JSON), conn (run of the server and id of the connection by which
//	                              others see that it lives), ended,
//	                              a:<consumer> the last part of an attempt to acquire that was granted something
//	ended                         zset: sessions declared dead or closed, by when
//	members:<consumer>            set: ids of sessions that are members and not declared dead
//	consumers                     hash: consumer -> the arguments of Register, as JSON
//	starts                        hash: consumer -> cursor where it began
//	paused                        hash: consumer that an operator has paused -> since when (µs)
//
//	rules                         hash: consumer -> grace in µs, " stream" if its leases are of streams, and
//	                              " row=" with their TTL in µs if they expire by themselves
//	res:<consumer>                set: resources known under this tag
//	want:<consumer>               set: those of a PerStream consumer that are wanted
//	free:<consumer>               zset: resources without an owner (PerStream: wanted ones), by when they become
//	                              free in µs; leases that expire by themselves (LockRow) stand here by
//	                              expiry plus grace while they are owned
//	freeing:<consumer>            zset: sessions declared dead or replaced that held leases, by when these become free
//	held:<consumer>:<session>     set: resources the session owns
//	granted:<consumer>:<session>  hash that expires: part of the session's last attempt to acquire -> resources
//	l:<consumer>:<resource>       hash: o owner's session, e epoch, q seq of the last progress, a attempt,
//	                              at when acquired, since when freed, c cursor, su suspicion, mk mark, me its epoch,
//	                              mc its count, x expiry (LockRow), g how often a stream was wanted
//
//	t:<topic>                     stream: the messages of a topic
//	topics                        zset: topic by the id of its last message
//	patterns                      hash: consumer -> p topics that any of its members reads, gone since when (µs) no
//	                              member has had those of them that are about to be dropped, as JSON
//	views                         hash: consumer -> k kind, p patterns, at id up to which its view is filled
//	                              until it is live, hold until when (µs) publishers wait for that, as JSON, of
//	                              those that do not read by topic
//	v:<consumer>:<resource>       stream: copies of the messages that a PerGroup, PerPartition or PerStream
//	                              consumer reads as one resource; they come from the topics of this tag only
//	dirty:<consumer>              zset: resource of such a consumer by the id of its last message
//	id:<length of topic>:<topic>:<id>   string that expires: an event id that dedupes
//	pub:<publisher>               hash that expires: number of an attempt to publish that was carried out -> last id,
//	                              low a number below which all are over, until when it is kept at least
//	delayed, delayed:e            zset: delayed event by when it is due; hash: its content
//
//	pr:<consumer>                 zset: resource with parked messages by when its first lane is due
//	pk:<consumer>:<resource>      hash: message id -> parked message
//	due:<consumer>:<resource>     zset: lane by when its first message is due
//	lane:<consumer>:<length of resource>:<resource>:<lane>   list: message ids in order
//	dead:<consumer>               zset: number of a dead letter by when, which is the number itself
//	dl:<consumer>                 hash: number -> dead letter; its id is <number>-<tag>
//	dx:<consumer>:<resource>      hash: message id -> number of its dead letter
//	once:<consumer>               hash: item -> how its execution ended; under the tag of the item
//	onceat:<consumer>             zset: item by when it was begun, or done
//	reads:<consumer>              hash: stream of an application -> a position in it, and how many of its entries, those deleted
//	                              among them, are not behind that
//	maintaining                   string that expires: who does the housekeeping; under the first tag that can be reached
//	swept:<consumer>              string that expires: streams to be forgotten were looked for; likewise
package leaseredis
