// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// Which request is whose.

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// request is one request of the control plane.
type request struct {
	http *http.Request
	body []byte
}

func (r *request) id() string { return r.http.PathValue("id") }

// answer is a success.
type answer struct {
	status int
	body   any // nil is an empty one
	header http.Header
}

// handler answers one route.
type handler func(r *request) (answer, *problem)

// router is the table of routes. A path without one, and a known path with
// another method, is a 404 in JSON.
func (s *Server) router() *http.ServeMux {
	mux := http.NewServeMux()
	route := func(call Call, pattern string, handle handler) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(call, handle, w, r) })
	}
	if !s.options.OnlyV1 {
		route(CallCreate, "POST /v2/sandboxes", s.createV2)
		route(CallConnect, "POST /v2/sandboxes/{id}/connect", s.connectV2)
	}
	route(CallCreate, "POST /sandboxes", s.createV1)
	route(CallConnect, "POST /sandboxes/{id}/connect", s.connectV1)
	route(CallConnect, "POST /sandboxes/{id}/resume", s.resumeV1)
	route(CallList, "GET /v2/sandboxes", s.listV2)
	route(CallList, "GET /sandboxes", s.listV1)
	route(CallGet, "GET /sandboxes/{id}", s.get)
	route(CallDelete, "DELETE /sandboxes/{id}", s.remove)
	route(CallTimeout, "POST /sandboxes/{id}/timeout", s.setTimeout)
	route(CallRefresh, "POST /sandboxes/{id}/refreshes", s.refresh)
	route(CallPause, "POST /sandboxes/{id}/pause", s.pauseSandbox)
	route(CallSnapshot, "POST /sandboxes/{id}/snapshots", s.snapshot)
	route(CallFork, "POST /sandboxes/{id}/fork", s.fork)
	route(CallNetwork, "PUT /sandboxes/{id}/network", s.putNetwork)
	route(CallLogs, "GET /sandboxes/{id}/logs", s.logsV1)
	route(CallLogs, "GET /v2/sandboxes/{id}/logs", s.logsV2)
	route(CallMetrics, "GET /sandboxes/{id}/metrics", s.metrics)
	route(CallMetrics, "GET /sandboxes/metrics", s.allMetrics)
	route(CallSnapshots, "GET /snapshots", s.listSnapshots)
	route(CallTemplates, "GET /v2/templates", s.listTemplates)
	route(CallTemplates, "GET /templates", s.listTemplates)
	route(CallTemplate, "GET /templates/{id}", s.getTemplate)
	// One pattern for two routes that the mux can't tell apart.
	route(CallTemplate, "GET /templates/{id}/{what}", s.getOfTemplate)
	route(CallBuild, "POST /v3/templates", s.createTemplate)
	route(CallBuild, "POST /v2/templates/{id}/builds/{build}", s.startBuild)
	route(CallBuildStatus, "GET /templates/{id}/builds/{build}/status", s.buildStatus)
	route(CallDeleteTemplate, "DELETE /templates/{id}", s.deleteTemplate)
	route(CallTags, "POST /templates/tags", s.addTags)
	route(CallTags, "DELETE /templates/tags", s.removeTags)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(http.StatusNotFound, "no operation %s %.80s", r.Method, r.URL.Path).write(w)
	})
	return mux
}

// keepBody bounds what is kept of a request's body.
const keepBody = 64 << 10

// ServeHTTP answers as the service would under all of its host names.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.evict()
	w.Header().Set("Date", s.now().Format(http.TimeFormat))
	kept := &recorder{ResponseWriter: w}
	req := Request{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Header: r.Header.Clone()}
	var body bytes.Buffer
	// A stream is passed on as it comes; the start of it is kept.
	r.Body = &teeBody{ReadCloser: r.Body, into: &body}
	id, port, ofSandbox := s.ofSandbox(r)
	req.Sandbox = id
	// The answer may be cut by a fault, which ends the handler by a panic.
	defer func() {
		req.Body, req.Status = body.Bytes(), kept.status
		s.mu.Lock()
		s.requests = append(s.requests, req)
		s.mu.Unlock()
	}()
	if ofSandbox {
		s.serveEdge(kept, r, id, port)
		return
	}
	s.routes.ServeHTTP(kept, r)
}

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type teeBody struct {
	io.ReadCloser
	into *bytes.Buffer
}

func (b *teeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if room := keepBody - b.into.Len(); room > 0 {
		b.into.Write(p[:min(n, room)])
	}
	return n, err
}

var sandboxHost = regexp.MustCompile(`^(\d+)-([a-z0-9]+)(-[^.]*)?\.`)

// ofSandbox tells whether a request is for a sandbox, for which and which port
// of it. The headers count only where the host names no sandbox by itself.
func (s *Server) ofSandbox(r *http.Request) (id, port string, ok bool) {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if match := sandboxHost.FindStringSubmatch(host); match != nil && net.ParseIP(host) == nil {
		return match[2], match[1], true
	}
	byHeader := host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil || strings.HasPrefix(host, "sandbox.")
	if id := r.Header.Get("E2b-Sandbox-Id"); id != "" && byHeader {
		return id, r.Header.Get("E2b-Sandbox-Port"), true
	}
	if strings.HasPrefix(host, "sandbox.") {
		return "", "", true
	}
	// A signed URL carries no header: the vendor's client puts the configured
	// address of the sandbox before it, and only one of ours can be meant.
	if r.URL.Path == "/files" && r.URL.Query().Has("signature") {
		return s.signedFor(r), envdPort, true
	}
	return "", "", false
}

// handlerDeadline is the service's own bound on one request.
const handlerDeadline = 70 * time.Second

var sandboxID = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)?$`)

// serve answers one request of the control plane.
func (s *Server) serve(call Call, handle handler, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refused("the body can't be read: %s", err).write(w)
		return
	}
	if p := s.authenticate(r); p != nil {
		p.write(w)
		return
	}
	if id := r.PathValue("id"); id != "" && strings.Contains(r.Pattern, "/sandboxes/") {
		if !sandboxID.MatchString(id) {
			refused("%.80q is no sandbox id", id).write(w)
			return
		}
		id, _, _ = strings.Cut(id, "-") // an old client id behind it is cut off
		r.SetPathValue("id", id)
	}
	ctx, cancel := context.WithTimeout(r.Context(), handlerDeadline)
	defer cancel()
	s.faults.answer(call, w, &request{http: r.WithContext(ctx), body: body}, handle)
}

// authenticate accepts the keys of the team.
func (s *Server) authenticate(r *http.Request) *problem {
	key := r.Header.Get("X-Api-Key")
	switch {
	case key == "":
		return fail(http.StatusUnauthorized, "no API key is given")
	case !strings.HasPrefix(key, "e2b_"):
		return fail(http.StatusUnauthorized, "the API key is malformed")
	case len(s.options.Keys) == 0:
		return nil
	}
	for _, known := range s.options.Keys {
		if key == known {
			return nil
		}
	}
	return fail(http.StatusUnauthorized, "the API key is not known")
}

// send writes a success.
func send(w http.ResponseWriter, a answer) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	writeJSON(w, a.status, a.body)
}
