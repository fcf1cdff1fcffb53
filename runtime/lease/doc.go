// Package lease gives each topic, group or singleton of a service to exactly one of
// its replicas at a time, and calls its handlers in order.
//
// # What is promised
//
// No message is lost. Every message that a publisher committed is handled, or kept as a
// dead letter with its reason, or still pending; a crash, a handover or a restart of
// any process, or of the backend, does not change that.
//
// A stale owner has no effect. Every lease carries an epoch, which rises with each
// owner and is never used twice. All that the runtime writes is refused when its epoch
// is no longer the current one, however long the process was frozen or cut off; so are
// effects that a handler writes through the transaction it is given. For effects
// outside the backend, pass [Message.Epoch] to a system that refuses older ones.
//
// One thing is not promised: that two handlers never run at the same moment. A frozen
// process does not know that time has passed. It is the epoch that makes this harmless,
// and only where the epoch is checked.
//
// # Delivery
//
// Handlers of the forms [One] and [Batch] are called at least once for each message; what
// was handled since the last commit is handled again after a crash. Effects written
// through the transaction of [OneTx] and [BatchTx] happen exactly once: cursor, fence and
// effects commit together. Messages of one resource come in the order in which they
// became visible: a message published after another's commit comes after it.
//
// # Belief
//
// A process believes in its session for TTL minus margin, counted from before the last
// confirmed heartbeat was sent, on whichever of its clocks has run furthest. When that
// time is over all handler contexts are cancelled with [ErrLost] as their cause, whether
// or not the backend can be reached. Others take the leases over when the TTL has passed
// on the backend's clock. The two intervals do not overlap as long as clocks run at the
// same rate within a few percent; only punctuality depends on that.
//
// # What a handler must do
//
// Return when its context is cancelled. A lease is never released while a handler runs:
// one that does not return keeps its resource until the TTL has passed, and keeps this
// process from owning it again. A panic is a failed attempt.
//
// # Failure
//
// A failed message is set aside durably with its attempts, its next time and its error,
// and tried again with backoff; [Order] says what waits in between. After [Retry.Max]
// attempts, or at once for [DeadLetter] errors and for payloads that cannot be decoded,
// it becomes a dead letter. Crashes, handovers and restarts are no attempts. A message
// that kills its process is found anyway: after two crashed owners in a row a
// resource is handled one message at a time, each marked durably before. A message that was
// marked when the third crashed is tried alone in its group; after two
// crashes over it then, each within 10 s, it becomes a dead letter. A message that runs beside other
// messages, or for longer, is not blamed.
//
// A failing message, handler, resource or consumer stops itself alone. A call of the
// backend that fails for many resources is made for fewer, and in the end for the one at
// fault by itself, which waits by itself, is given more time and asked for less.
//
// Readers of the source begin at type work in work.go: it draws the path of a message.
package lease
