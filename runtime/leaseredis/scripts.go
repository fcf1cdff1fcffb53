package leaseredis

// scripts are the atomic steps, each in a file of its own name.
var scripts = struct {
	acquire        *script
	adopt          *script
	attach         *script
	build          *script
	bury           *script
	clock          *script
	close          *script
	commit         *script
	count          *script
	deadletters    *script
	deadreasons    *script
	describe       *script
	droponce       *script
	endonce        *script
	executing      *script
	expiredead     *script
	feed           *script
	fetchparked    *script
	forget         *script
	forgetonce     *script
	forgetsessions *script
	forgetstreams  *script
	heartbeat      *script
	heldseq        *script
	leases         *script
	findparked     *script
	listparked     *script
	retryparked    *script
	members        *script
	narrow         *script
	open           *script
	owned          *script
	pause          *script
	publish        *script
	purge          *script
	register       *script
	release        *script
	renew          *script
	replay         *script
	retire         *script
	retiring       *script
	setcursor      *script
	rewind         *script
	ring           *script
	shape          *script
	startonce      *script
	survey         *script
	token          *script
	trimtopics     *script
	trimviews      *script
	withdraw       *script
}{
	acquire:        load("acquire", "lib_lease"),
	adopt:          load("adopt", "lib_log"),
	attach:         load("attach", "lib_log", "lib_patterns"),
	build:          load("build", "lib_log"),
	bury:           load("bury", "lib_lease"),
	clock:          load("clock"),
	close:          load("close", "lib_lease"),
	commit:         load("commit", "lib_parked", "lib_dead"),
	count:          loadAlone("count"),
	deadletters:    load("deadletters", "lib_dead", "lib_packed"),
	deadreasons:    load("deadreasons", "lib_dead", "lib_packed"),
	describe:       loadAlone("describe"),
	droponce:       load("droponce", "lib_once"),
	endonce:        load("endonce", "lib_once"),
	executing:      load("executing"),
	expiredead:     load("expiredead", "lib_dead"),
	feed:           load("feed", "lib_log"),
	fetchparked:    load("fetchparked", "lib_parked"),
	forget:         load("forget", "lib_parked"),
	forgetonce:     load("forgetonce", "lib_once"),
	forgetsessions: load("forgetsessions", "lib_lease"),
	forgetstreams:  load("forgetstreams"),
	heartbeat:      load("heartbeat"),
	heldseq:        load("heldseq"),
	leases:         load("leases"),
	listparked:     load("listparked", "lib_parked", "lib_packed"),
	findparked:     load("findparked", "lib_parked", "lib_packed"),
	retryparked:    load("retryparked", "lib_parked"),
	members:        load("members"),
	narrow:         load("narrow", "lib_log", "lib_patterns"),
	open:           load("open", "lib_log", "lib_patterns", "lib_lease"),
	owned:          load("owned"),
	pause:          load("pause"),
	publish:        load("publish", "lib_log"),
	purge:          load("purge", "lib_dead"),
	register:       load("register", "lib_lease"),
	release:        load("release", "lib_lease"),
	renew:          load("renew"),
	replay:         load("replay", "lib_lease", "lib_parked", "lib_dead"),
	retire:         load("retire", "lib_lease"),
	retiring:       load("retiring"),
	setcursor:      load("setcursor", "lib_parked", "lib_dead"),
	rewind:         load("rewind", "lib_lease"),
	ring:           load("ring"),
	shape:          load("shape"),
	startonce:      load("startonce", "lib_once"),
	survey:         load("survey", "lib_lease"),
	token:          load("token"),
	trimtopics:     load("trimtopics", "lib_log", "lib_patterns"),
	trimviews:      load("trimviews"),
	withdraw:       load("withdraw"),
}
