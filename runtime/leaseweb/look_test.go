package leaseweb

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/leasegen/leasegen/runtime/operate"
)

func TestLook(t *testing.T) {
	if os.Getenv("LOOK") == "" { t.Skip() }
	now := time.Now()
	f := &fake{now: now}
	for i, n := range []string{"activity","archive","billing","shipping","welcome"} {
		f.all = append(f.all, operate.ConsumerStatus{Consumer: n, Per: "topic", Lock: "session", Resources: 256, Members: 3, DeadLetters: i*7%5, ParkedKeys: i%2, LagMax: int64(i*1300), LagTotal: int64(i*3000), OldestUnread: time.Duration(i)*30*time.Second, Unowned: i/4})
	}
	f.all[1].Paused, f.all[1].PausedFor = true, 12*time.Minute
	f.all[2].DeadLetters = 134
	for i := range 3 {
		f.members = append(f.members, operate.MemberStatus{Session: fmt.Sprintf("%d7c19ab3%024d", i, i), Host: "web-"+fmt.Sprint(i+1), PID: 4000+i, Since: time.Hour, SinceBeat: time.Second, Owned: 86-i, FairShare: 86, TTLRemaining: 10*time.Second})
	}
	for i := range 256 {
		l := operate.LeaseStatus{Resource: fmt.Sprint(i), Session: f.members[i%3].Session, Epoch: 1772625720000000, Since: time.Hour}
		if i%17 == 0 { l.Lag = int64(300-i) }
		if i == 77 { l.Session = "" }
		if i%60 == 0 { l.Since = 3*time.Second }
		f.leases = append(f.leases, l)
		f.cursors = append(f.cursors, operate.CursorStatus{Resource: l.Resource, Session: l.Session, Epoch: l.Epoch, Position: fmt.Sprint(9000+i), Lag: l.Lag})
	}
	for i := range 134 {
		reason := fmt.Sprintf("carrier: 503 Service Unavailable (request %d)", i)
		if i%5 == 0 { reason = "<script>alert(1)</script> installation.created_at: want int64, got string" }
		if i < 120 { reason = reason[:28] }
		f.letters = append(f.letters, operate.DeadLetterInfo{ID: fmt.Sprint(100+i), Consumer: "billing", Resource: "17", MessageID: fmt.Sprint(9000+i), Topic: "orders.eu", Key: fmt.Sprintf("cust-%d", i%13), Kind: "order.placed", Payload: []byte(`{"cents":12345678901234567890,"customer":"ann","nested":{"z":1,"a":[1,2]}}`), Size: 70, Headers: map[string]string{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, PublishedAt: now.Add(-time.Hour), FirstFailed: now.Add(-50*time.Minute), DeadAt: now.Add(time.Duration(i-134)*time.Minute), Attempts: 8, Reason: reason})
	}
	for i := range 12 {
		f.parked = append(f.parked, operate.ParkedInfo{Resource: "17", MessageID: fmt.Sprint(9500+i), Place: fmt.Sprint(i), Topic: "orders.eu", Key: fmt.Sprintf("cust-%d", i/3), Attempts: 3, Due: now.Add(time.Hour), FirstFailed: now.Add(-time.Minute), Behind: i%3>0, Error: "carrier: 503"})
	}
	p := New(f, WithAccess(func(*http.Request) Access { return View|Payloads|Operate }), WithTarget("shop@db-1"), WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	go func() { for i := 0; ; i++ { time.Sleep(3*time.Second); f.mu.Lock(); f.all[2].LagTotal = int64(3000+i%7*500); s := f.members[i%3].Session; for k := range 20 { f.leases[(i*13+k)%256].Session = s; f.leases[(i*13+k)%256].Since = time.Second }; f.members[0].Owned=60+i%30; f.mu.Unlock() } }()
	t.Log(http.ListenAndServe("127.0.0.1:8099", http.StripPrefix("/ops", p)))
}
