package leaseredis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// link is the connection by which the others see that a session lives, to one server, and over which it looks at theirs. There is
// one TCP connection to it: when that breaks the link is over.
type link struct {
	client *redis.Client
	line   *lifeline
	name   string // random; what the server is to show under the id
	id     int64
	run    string        // of the server
	took   time.Duration // to make it
	noted  map[int]bool  // the tags under which it is noted, or may be
	known  map[int64]sight
}

// sight is what a link has shown of a connection that another process has noted.
type sight struct {
	seen bool
	// Until then: when it was looked for first, and the last heartbeat under a tag by then.
	since time.Time
	tag   int
	beat  string
}

// gone returns those whose connection the server does not have any more. It looks at more, too: that these are gone is no proof until
// they have been seen.
func (l *link) gone(ctx context.Context, of map[neighbour][]int, more ...int64) (map[neighbour][]int, error) {
	if len(of) == 0 {
		return nil, nil
	}
	ids := more
	for n := range of {
		ids = append(ids, n.id)
	}
	there, err := l.there(ctx, ids...)
	if err != nil {
		return nil, err
	}
	for id := range there {
		if k, is := l.known[id]; is {
			k.seen = true
			l.known[id] = k
		}
	}
	gone := maps.Clone(of)
	maps.DeleteFunc(gone, func(n neighbour, _ []int) bool { return there[n.id] || !l.known[n.id].seen })
	return gone, nil
}

// errUnprovable: on this server the id of a connection is no proof.
var errUnprovable = errors.New("the ids of connections cannot be used")

var errLinkBroken = errors.New("leaseredis: the connection by which others see that this process lives has ended")

// dial makes a link to the server of these options. The error is errUnprovable when the server refuses what is needed,
// or shows under the connection's id another one, as behind a proxy that has connections of its own.
func dial(ctx context.Context, o redis.Options) (_ *link, err error) {
	began := time.Now()
	l := &link{line: &lifeline{ended: make(chan struct{})}, name: "leasegen-" + rand.Text(), noted: map[int]bool{}}
	o.Dialer = l.line.dialer(o.Dialer)
	o.MaxRetries, o.PoolSize, o.MaxActiveConns, o.PipelinePoolSize, o.ConnMaxIdleTime, o.ConnMaxLifetime = -1, 1, 1, -1, -1, -1
	o.PushNotificationProcessor, o.MaintNotificationsConfig = nil, &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	l.client = redis.NewClient(&o)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	pipe := l.client.Pipeline()
	named := pipe.Do(ctx, "CLIENT", "SETNAME", l.name)
	id, info := pipe.ClientID(ctx), pipe.Info(ctx, "server")
	pipe.Exec(ctx) // each command has its own error
	for _, err := range []error{named.Err(), id.Err(), info.Err()} {
		if err != nil {
			return nil, unprovable(err)
		}
	}
	l.id = id.Val()
	for line := range strings.Lines(info.Val()) {
		if run, ok := strings.CutPrefix(line, "run_id:"); ok {
			l.run = strings.TrimSpace(run)
		}
	}
	if l.run == "" {
		return nil, fmt.Errorf("%w: INFO tells no run_id", errUnprovable)
	}
	if _, err := l.there(ctx); err != nil {
		return nil, err
	}
	l.took = time.Since(began)
	return l, nil
}

func (l *link) close() {
	l.client.Close()
	l.line.cut()
}

// unprovable is the error of a server that does not have, or does not allow, what is needed; another error stays what it is.
func unprovable(err error) error {
	var said redis.Error
	if !errors.As(err, &said) {
		return err
	}
	words := strings.ToLower(said.Error())
	for _, lack := range []string{"noperm", "err unknown", "err syntax", "wrong number of arg", "not supported", "unsupported",
		"not allowed", "not available", "not permitted", "disabled"} {
		if strings.Contains(words, lack) {
			return fmt.Errorf("%w: %w", errUnprovable, err)
		}
	}
	return err
}

// passing reports that a server has answered, and refuses for the moment, with BUSY or LOADING for example.
func passing(err error) bool {
	var said redis.Error
	return errors.As(err, &said) && !errors.Is(err, errUnprovable)
}

// conn is what is stored of the link.
func (l *link) conn() string { return l.run + "/" + strconv.FormatInt(l.id, 10) }

// given returns the id of a connection that this run of the server has given.
func (l *link) given(conn string) (id int64, ok bool) {
	digits, ok := strings.CutPrefix(conn, l.run+"/")
	id, err := strconv.ParseInt(digits, 10, 64)
	return id, ok && err == nil
}

// there returns which of the connections the server has. It is an error when the link itself is not among them.
func (l *link) there(ctx context.Context, ids ...int64) (map[int64]bool, error) {
	args := []any{"CLIENT", "LIST", "ID", l.id}
	for _, id := range ids {
		args = append(args, id)
	}
	list, err := l.client.Do(ctx, args...).Text()
	if err != nil {
		return nil, unprovable(err)
	}
	there, own := map[int64]bool{}, false
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		digits, _ := strings.CutPrefix(fields[0], "id=")
		id, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: CLIENT LIST begins a line with %.20q", errUnprovable, fields[0])
		}
		there[id] = true
		for _, f := range fields {
			own = own || id == l.id && f == "name="+l.name
		}
	}
	if !own {
		return nil, fmt.Errorf("%w: under the id %d the server does not show this connection, as behind a proxy", errUnprovable, l.id)
	}
	return there, nil
}
