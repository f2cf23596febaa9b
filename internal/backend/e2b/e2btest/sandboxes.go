// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// The routes that make, show and end sandboxes.

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// creation is a validated request for a sandbox.
type creation struct {
	template        string
	timeout         int64
	meta, env       map[string]string
	autoPause       bool
	autoPauseMemory bool
	autoResume      bool
	internet        *bool
	network         *network
	secure          bool
	volumes         []volumeMount
}

type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// What a request for a sandbox gives back; the nullable fields are there as
// null.
type sandboxJSON struct {
	TemplateID         string  `json:"templateID"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	EnvdVersion        string  `json:"envdVersion"`
	Alias              string  `json:"alias,omitempty"`
	EnvdAccessToken    *string `json:"envdAccessToken"`
	TrafficAccessToken *string `json:"trafficAccessToken"`
	Domain             *string `json:"domain"`
}

// clientID means nothing, and is required.
const clientID = "6532622b"

// createV2 is the create of now: every sandbox is secured.
func (s *Server) createV2(r *request) (answer, *problem) {
	key := r.http.Header.Get("Idempotency-Key")
	if key == "" || s.options.NoIdempotency {
		return s.create(r, 300, true)
	}
	return s.once(key, r.body, func() (answer, *problem) { return s.create(r, 300, true) })
}

// createV1 is the old one: a sandbox is secured when that is asked for, and
// lives for 15 s unless somebody says more.
func (s *Server) createV1(r *request) (answer, *problem) { return s.create(r, 15, false) }

func (s *Server) create(r *request, timeout int64, secure bool) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	c := creation{timeout: timeout, secure: secure, autoPauseMemory: true}
	if p := c.read(o, !secure); p != nil {
		return answer{}, p
	}
	if p := s.checkCreation(o, &c); p != nil {
		return answer{}, p
	}
	s.pause(s.options.StartTakes)
	s.mu.Lock()
	defer s.mu.Unlock()
	t, p := s.resolve(c.template)
	if p != nil {
		return answer{}, p
	}
	if p := s.room(1); p != nil {
		return answer{}, p
	}
	m := s.start(t, c)
	return answer{status: http.StatusCreated, body: s.sandboxOf(m)}, nil
}

func (c *creation) read(o object, v1 bool) *problem {
	if !o.has("templateID") {
		return refused("property \"templateID\" is missing")
	}
	var resume object
	p := first(
		read(o, "templateID", &c.template), readTimeout(o, &c.timeout),
		texts(o, "metadata", &c.meta), texts(o, "envVars", &c.env),
		read(o, "autoPause", &c.autoPause), read(o, "autoPauseMemory", &c.autoPauseMemory),
		read(o, "autoResume", &resume), read(o, "volumeMounts", &c.volumes),
	)
	if p != nil {
		return p
	}
	if v1 {
		if p := read(o, "secure", &c.secure); p != nil {
			return p
		}
	}
	if resume != nil {
		if !resume.has("enabled") {
			return refused("property \"enabled\" is missing")
		}
		if p := read(resume, "enabled", &c.autoResume); p != nil {
			return p
		}
	}
	if o.has("allow_internet_access") {
		c.internet = new(bool)
		if p := read(o, "allow_internet_access", c.internet); p != nil {
			return p
		}
	}
	if o.has("network") {
		c.network = &network{}
		if p := read(o, "network", c.network); p != nil {
			return p
		}
	}
	return nil
}

// checkCreation is what the handler refuses and the schema does not.
func (s *Server) checkCreation(o object, c *creation) *problem {
	switch {
	case c.timeout <= 0:
		return fail(http.StatusBadRequest, "timeout must be greater than 0")
	case time.Duration(c.timeout)*time.Second > s.options.MaxRun:
		return fail(http.StatusBadRequest, "timeout can't be greater than %g hours", s.options.MaxRun.Hours())
	case !c.autoPauseMemory && (!c.autoPause || c.autoResume):
		return fail(http.StatusBadRequest, "autoPauseMemory needs autoPause, and no autoResume")
	case o.has("iam"), o.has("volumeMounts") && len(c.volumes) > 0 && slices.ContainsFunc(c.volumes, func(v volumeMount) bool { return v.Name == "" || v.Path == "" }):
		return fail(http.StatusBadRequest, "the feature is not enabled for this team")
	}
	if c.network != nil {
		return c.network.check(c.secure)
	}
	return nil
}

// start makes a running sandbox. The caller holds the lock.
func (s *Server) start(t *template, c creation) *machine {
	now := s.now()
	life := time.Duration(c.timeout) * time.Second
	m := &machine{
		id: "i" + randomID(20), template: t, meta: c.meta, env: maps.Clone(c.env), network: c.network, internet: c.internet, secure: c.secure, volumes: c.volumes,
		autoPause: c.autoPause, autoPauseMemory: c.autoPauseMemory, autoResume: c.autoResume, timeout: life,
		state: running, started: now, ends: now.Add(life), lagging: now.Add(s.options.EdgeLag),
	}
	dir := ""
	if t.image != nil {
		dir = t.image.dir
		if len(m.env) == 0 {
			// What the source had is still in the memory of the copy.
			m.env = maps.Clone(t.image.env)
		}
	}
	m.root = s.newRoot(m.id, dir)
	s.machines[m.id] = m
	t.spawned++
	t.lastSpawn = now
	return m
}

func (s *Server) sandboxOf(m *machine) sandboxJSON {
	shown := sandboxJSON{TemplateID: m.template.id, SandboxID: m.id, ClientID: clientID, EnvdVersion: s.options.EnvdVersion, Alias: m.template.alias}
	if m.secure {
		access := token("envd", m.id)
		shown.EnvdAccessToken = &access
	}
	if m.network != nil && m.network.AllowPublicTraffic != nil && !*m.network.AllowPublicTraffic {
		traffic := token("traffic", m.id)
		shown.TrafficAccessToken = &traffic
	}
	return shown
}

// replay is the first answer to an Idempotency-Key.
type replay struct {
	body    [sha256.Size]byte
	done    bool
	answer  answer
	problem *problem
}

var idempotencyKey = regexp.MustCompile("^[a-z0-9]{1,255}$")

// once runs a create for a key once, and answers the same ever after, errors
// included.
func (s *Server) once(key string, body []byte, act func() (answer, *problem)) (answer, *problem) {
	if !idempotencyKey.MatchString(key) {
		return answer{}, refused("%.20q is no idempotency key", key)
	}
	sum := sha256.Sum256(body)
	s.mu.Lock()
	if kept := s.idem[key]; kept != nil {
		defer s.mu.Unlock()
		switch {
		case kept.body != sum:
			return answer{}, &problem{status: http.StatusConflict, code: "idempotency_request_mismatch", message: "the key was used with another request"}
		case !kept.done:
			return answer{}, &problem{status: http.StatusConflict, code: "idempotency_in_progress", message: "the first request is still under way"}
		}
		return kept.answer, kept.problem
	}
	kept := &replay{body: sum}
	s.idem[key] = kept
	s.mu.Unlock()
	a, p := act()
	s.mu.Lock()
	defer s.mu.Unlock()
	kept.done, kept.answer, kept.problem = true, a, p
	return a, p
}

// listed is a sandbox in a listing.
type listed struct {
	TemplateID   string            `json:"templateID"`
	SandboxID    string            `json:"sandboxID"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int               `json:"memoryMB"`
	DiskSizeMB   int               `json:"diskSizeMB"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	Alias        string            `json:"alias,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	VolumeMounts []volumeMount     `json:"volumeMounts,omitempty"`
}

// detail is a sandbox that was asked for by its id.
type detail struct {
	listed
	EnvdAccessToken     *string   `json:"envdAccessToken,omitempty"`
	AllowInternetAccess *bool     `json:"allowInternetAccess"`
	Domain              *string   `json:"domain"`
	Network             *network  `json:"network,omitempty"`
	Lifecycle           lifecycle `json:"lifecycle"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

// listedOf shows a sandbox. The caller holds the lock.
func (s *Server) listedOf(m *machine, state string) listed {
	l := listed{
		TemplateID: m.template.id, SandboxID: m.id, ClientID: clientID, StartedAt: m.started, EndAt: m.ends,
		CPUCount: 2, MemoryMB: 512, DiskSizeMB: 2048, State: state, EnvdVersion: s.options.EnvdVersion,
		Metadata: maps.Clone(m.meta), VolumeMounts: m.volumes,
	}
	if state == "running" {
		l.Alias = m.template.alias
	}
	return l
}

func (s *Server) get(r *request) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, p := s.lookup(r.id())
	if p != nil {
		return answer{}, p
	}
	state, ok := m.shown()
	if !ok {
		return answer{}, notFound(m.id)
	}
	d := detail{listed: s.listedOf(m, state), AllowInternetAccess: m.internet, Network: m.network.shown(), Lifecycle: lifecycle{m.autoResume, "kill"}}
	if m.autoPause {
		d.Lifecycle.OnTimeout = "pause"
	}
	if m.secure {
		access := token("envd", m.id)
		d.EnvdAccessToken = &access
	}
	return answer{status: http.StatusOK, body: d}, nil
}

func (s *Server) remove(r *request) (answer, *problem) {
	s.mu.Lock()
	m, p := s.lookup(r.id())
	if p != nil {
		s.mu.Unlock()
		return answer{}, p
	}
	joined, p := s.enter(m, killing)
	if p != nil {
		s.mu.Unlock()
		return answer{}, p
	}
	live := m.live() && !joined
	s.mu.Unlock()
	if live {
		s.finishKill(m)
	}
	s.mu.Lock()
	s.drop(m)
	s.mu.Unlock()
	m.root.Close()
	return answer{status: http.StatusNoContent}, nil
}

func (s *Server) setTimeout(r *request) (answer, *problem) {
	o, p := r.object(false)
	if p != nil {
		return answer{}, p
	}
	var timeout int64
	if p := readTimeout(o, &timeout); p != nil {
		return answer{}, p
	}
	if !o.has("timeout") {
		return answer{}, fail(http.StatusBadRequest, "timeout is required")
	}
	return s.prolong(r.id(), func(m *machine, now time.Time) time.Time { return now.Add(time.Duration(timeout) * time.Second) })
}

func (s *Server) refresh(r *request) (answer, *problem) {
	o, p := r.object(false)
	if p != nil {
		return answer{}, p
	}
	duration := int64(15)
	if p := number(o, "duration", &duration, 0, 3600); p != nil {
		return answer{}, p
	}
	return s.prolong(r.id(), func(m *machine, now time.Time) time.Time {
		until := now.Add(time.Duration(max(duration, 15)) * time.Second)
		if until.Before(m.ends) {
			return m.ends
		}
		return until
	})
}

// prolong sets the end of a running sandbox, within the plan's maximum, which
// it keeps in silence.
func (s *Server) prolong(id string, until func(m *machine, now time.Time) time.Time) (answer, *problem) {
	defer s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	m, p := s.lookup(id)
	if p != nil {
		return answer{}, p
	}
	switch m.state {
	case none:
		return answer{}, notFound(id) // paused, too
	case running:
	default:
		return answer{}, fail(http.StatusConflict, "sandbox %q is %s", id, m.state)
	}
	now, latest := s.now(), m.started.Add(s.options.MaxRun)
	if !now.Before(latest) {
		return answer{}, fail(http.StatusBadRequest, "the sandbox has run for the plan's maximum")
	}
	m.ends = until(m, now)
	if m.ends.After(latest) {
		m.ends = latest
	}
	return answer{status: http.StatusNoContent}, nil
}

func (s *Server) pauseSandbox(r *request) (answer, *problem) {
	o, p := r.object(false)
	if p != nil {
		return answer{}, p
	}
	memory := true
	if p := read(o, "memory", &memory); p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	m, p := s.lookup(r.id())
	if p == nil && !m.live() {
		p = fail(http.StatusConflict, "sandbox %q is paused", m.id)
	}
	joined := false
	if p == nil {
		joined, p = s.enter(m, pausing)
	}
	if p == nil && !joined && !m.live() {
		p = notFound(r.id()) // it ended while it was waited for
	}
	s.mu.Unlock()
	if p != nil {
		return answer{}, p
	}
	if !joined {
		s.finishPause(m, memory)
	}
	return answer{status: http.StatusNoContent}, nil
}

func (s *Server) connectV2(r *request) (answer, *problem) {
	o, p := r.object(false)
	if p != nil {
		return answer{}, p
	}
	timeout := int64(300)
	if p := number(o, "timeout", &timeout, 1, math.MaxInt32); p != nil {
		return answer{}, p
	}
	return s.connect(r, o, timeout)
}

func (s *Server) connectV1(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	if !o.has("timeout") {
		return answer{}, refused("property \"timeout\" is missing")
	}
	var timeout int64
	if p := readTimeout(o, &timeout); p != nil {
		return answer{}, p
	}
	return s.connect(r, o, timeout)
}

func (s *Server) connect(r *request, o object, timeout int64) (answer, *problem) {
	memory := true
	if p := read(o, "memory", &memory); p != nil {
		return answer{}, p
	}
	life := time.Duration(timeout) * time.Second
	s.mu.Lock()
	defer s.mu.Unlock()
	m, p := s.lookup(r.id())
	for p == nil && (m.state == pausing || m.state == snapshotting) {
		s.wait(m)
		m, p = s.lookup(r.id())
	}
	if p != nil {
		return answer{}, p
	}
	switch m.state {
	case killing:
		return answer{}, fail(http.StatusConflict, "sandbox %q is being killed", m.id)
	case running:
		if life > s.options.MaxRun {
			return answer{}, fail(http.StatusBadRequest, "timeout can't be greater than %g hours", s.options.MaxRun.Hours())
		}
		until, latest := s.now().Add(life), m.started.Add(s.options.MaxRun)
		if until.After(latest) {
			until = latest
		}
		if until.After(m.ends) {
			m.ends = until
		}
		return answer{status: http.StatusOK, body: s.sandboxOf(m)}, nil
	}
	if timeout == 0 {
		return answer{}, fail(http.StatusBadRequest, "timeout must be greater than 0")
	}
	if p := s.resume(m, life, memory); p != nil {
		return answer{}, p
	}
	return answer{status: http.StatusCreated, body: s.sandboxOf(m)}, nil
}

func (s *Server) resumeV1(r *request) (answer, *problem) {
	o, p := r.object(false)
	if p != nil {
		return answer{}, p
	}
	timeout, memory, autoPause := int64(15), true, false
	if p := first(readTimeout(o, &timeout), read(o, "memory", &memory), read(o, "autoPause", &autoPause)); p != nil {
		return answer{}, p
	}
	if timeout == 0 {
		return answer{}, fail(http.StatusBadRequest, "timeout must be greater than 0")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, p := s.lookup(r.id())
	if p != nil {
		return answer{}, p
	}
	if m.live() {
		return answer{}, fail(http.StatusConflict, "sandbox %q is %s", m.id, m.state)
	}
	if p := s.resume(m, time.Duration(timeout)*time.Second, memory); p != nil {
		return answer{}, p
	}
	m.autoPause = m.autoPause || autoPause
	return answer{status: http.StatusCreated, body: s.sandboxOf(m)}, nil
}

// forked is one entry of the answer to a fork.
type forked struct {
	Sandbox *sandboxJSON   `json:"sandbox,omitempty"`
	Error   map[string]any `json:"error,omitempty"`
}

func (s *Server) fork(r *request) (answer, *problem) {
	o, p := r.object(false)
	if p != nil {
		return answer{}, p
	}
	timeout, count := int64(15), int64(1)
	if p := first(number(o, "timeout", &timeout, 1, math.MaxInt32), number(o, "count", &count, 1, 100)); p != nil {
		return answer{}, p
	}
	if int(count) >= s.options.Concurrent {
		return answer{}, fail(http.StatusBadRequest, "count is at or above the team's concurrency")
	}
	m, made, p := s.checkpoint(r.id())
	if p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []forked
	for range count {
		if p := s.room(1); p != nil {
			all = append(all, forked{Error: map[string]any{"code": p.status, "message": p.message}})
			continue
		}
		// A copy carries what its parent carries, the metadata too.
		copied := s.start(&template{id: m.template.id, alias: m.template.alias, image: made}, creation{
			timeout: timeout, meta: maps.Clone(m.meta), env: m.env, network: m.network, internet: m.internet, secure: m.secure, volumes: m.volumes,
			autoPause: m.autoPause, autoPauseMemory: m.autoPauseMemory, autoResume: m.autoResume,
		})
		copied.template, copied.stored = m.template, made
		shown := s.sandboxOf(copied)
		all = append(all, forked{Sandbox: &shown})
	}
	return answer{status: http.StatusCreated, body: all}, nil
}

// checkpoint stores a running sandbox that goes on.
func (s *Server) checkpoint(id string) (*machine, *image, *problem) {
	s.mu.Lock()
	m, p := s.lookup(id)
	if p == nil && !m.live() {
		p = notFound(id) // it is paused, which is the same answer
	}
	if p == nil && m.state == snapshotting {
		p = fail(http.StatusConflict, "sandbox %q is being snapshotted", id)
	}
	if p == nil {
		_, p = s.enter(m, snapshotting)
	}
	s.mu.Unlock()
	if p != nil {
		return nil, nil, p
	}
	s.pause(s.options.SnapshotTakes)
	made, err := s.capture(m)
	m.root.Thaw()
	s.mu.Lock()
	defer s.mu.Unlock()
	m.settle(running)
	if err != nil {
		return nil, nil, fail(http.StatusInternalServerError, "the snapshot failed: %s", err)
	}
	m.stored = made // from now on a kill by the evictor leaves it behind
	return m, made, nil
}

// network is the network configuration of a sandbox.
type network struct {
	AllowPublicTraffic *bool           `json:"allowPublicTraffic,omitempty"`
	AllowOut           []string        `json:"allowOut,omitempty"`
	DenyOut            []string        `json:"denyOut,omitempty"`
	EgressProxy        *egressProxy    `json:"egressProxy,omitempty"`
	MaskRequestHost    string          `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []int           `json:"httpsPorts,omitempty"`
	Rules              json.RawMessage `json:"rules,omitempty"`
}

type egressProxy struct {
	Address  string `json:"address"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// shown leaves out what is secret.
func (n *network) shown() *network {
	if n == nil {
		return nil
	}
	shown := *n
	if n.EgressProxy != nil {
		shown.EgressProxy = &egressProxy{Address: n.EgressProxy.Address, Username: n.EgressProxy.Username}
	}
	return &shown
}

const everything = "0.0.0.0/0"

func (n *network) check(secured bool) *problem {
	if n.AllowPublicTraffic == nil {
		yes := true
		n.AllowPublicTraffic = &yes
	}
	if !*n.AllowPublicTraffic && !secured {
		return fail(http.StatusBadRequest, "without public traffic the sandbox has to be secured")
	}
	for _, entry := range n.DenyOut {
		if !isAddress(entry) {
			return fail(http.StatusBadRequest, "denyOut: %.80q is no address", entry)
		}
	}
	for _, entry := range n.AllowOut {
		if isAddress(entry) {
			continue
		}
		if strings.ContainsAny(entry, "/: ") {
			return fail(http.StatusBadRequest, "allowOut: %.80q is neither an address nor a domain", entry)
		}
		if !slices.Contains(n.DenyOut, everything) {
			return fail(http.StatusBadRequest, "allowOut has domains, and denyOut lacks %s", everything)
		}
	}
	seen := map[int]bool{}
	for _, port := range n.HTTPSPorts {
		if port < 1 || port > 65535 || port == 49983 || seen[port] || len(n.HTTPSPorts) > 128 {
			return fail(http.StatusBadRequest, "httpsPorts: %d", port)
		}
		seen[port] = true
	}
	if n.EgressProxy != nil && n.EgressProxy.Address == "" {
		return fail(http.StatusBadRequest, "egressProxy has no address")
	}
	return nil
}

// putNetwork replaces all that is about going out.
func (s *Server) putNetwork(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	var n network
	var internet *bool
	if o.has("allow_internet_access") {
		internet = new(bool)
		if p := read(o, "allow_internet_access", internet); p != nil {
			return answer{}, p
		}
	}
	p = first(read(o, "allowOut", &n.AllowOut), read(o, "denyOut", &n.DenyOut), read(o, "egressProxy", &n.EgressProxy), read(o, "rules", &n.Rules))
	if p != nil {
		return answer{}, p
	}
	if p := n.check(true); p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, p := s.lookup(r.id())
	switch {
	case p != nil:
		return answer{}, p
	case m.state == none:
		return answer{}, notFound(m.id)
	case m.state != running:
		return answer{}, fail(http.StatusConflict, "sandbox %q is %s", m.id, m.state)
	}
	if m.network != nil {
		n.AllowPublicTraffic, n.MaskRequestHost, n.HTTPSPorts = m.network.AllowPublicTraffic, m.network.MaskRequestHost, m.network.HTTPSPorts
	}
	m.network, m.internet = &n, internet
	return answer{status: http.StatusNoContent}, nil
}

// The service's own log of a sandbox: nothing is in it here.
func (s *Server) logsV1(r *request) (answer, *problem) {
	return s.about(r, map[string]any{"logs": []any{}, "logEntries": []any{}})
}

func (s *Server) logsV2(r *request) (answer, *problem) {
	return s.about(r, map[string]any{"logs": []any{}})
}

func (s *Server) metrics(r *request) (answer, *problem) { return s.about(r, []any{s.metric()}) }

// about answers for a sandbox that is there.
func (s *Server) about(r *request, body any) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, p := s.lookup(r.id()); p != nil {
		return answer{}, p
	}
	return answer{status: http.StatusOK, body: body}, nil
}

func (s *Server) metric() map[string]any {
	now := s.now()
	return map[string]any{
		"timestamp": now, "timestampUnix": now.Unix(), "cpuCount": 2, "cpuUsedPct": 0.5, "memUsed": 64 << 20, "memTotal": 512 << 20,
		"memCache": 0, "diskUsed": 1 << 20, "diskTotal": 2 << 30,
	}
}

func (s *Server) allMetrics(r *request) (answer, *problem) {
	ids := r.http.URL.Query().Get("sandbox_ids")
	if ids == "" {
		return answer{}, refused("parameter \"sandbox_ids\" is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]any{}
	for _, id := range strings.Split(ids, ",") {
		if m, p := s.lookup(id); p == nil && m.live() {
			found[id] = s.metric()
		}
	}
	return answer{status: http.StatusOK, body: map[string]any{"sandboxes": found}}, nil
}

// digest names content.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
