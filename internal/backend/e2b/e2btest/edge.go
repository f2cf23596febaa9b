// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// The edge in front of the sandboxes, and envd's own routes.

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const envdPort = "49983"

// edgeProblem is how the edge words an error.
func edgeProblem(w http.ResponseWriter, status int, id, port, message string) {
	body := map[string]any{"sandboxId": id, "message": message, "code": status}
	if port != "" {
		body["port"], _ = strconv.Atoi(port) // shown only
	}
	writeJSON(w, status, body)
}

// serveEdge answers a request for a sandbox.
func (s *Server) serveEdge(w http.ResponseWriter, r *http.Request, id, port string) {
	if id == "" || port == "" {
		http.Error(w, "the host or the headers name no sandbox and port", http.StatusBadRequest)
		return
	}
	m, ok := s.awake(w, id)
	if !ok {
		return
	}
	if port != envdPort {
		s.servePort(w, r, m, port)
		return
	}
	switch r.URL.Path {
	case "/init", "/freeze", "/unfreeze", "/fsfreeze", "/collapse", "/upgrade":
		edgeProblem(w, http.StatusNotFound, id, "", "not for the outside")
		return
	case "/health":
		if !s.lieAt(CallHealth, w) {
			w.WriteHeader(http.StatusNoContent)
		}
		return
	}
	s.mu.Lock()
	secure, env := m.secure, m.env
	s.mu.Unlock()
	if secure && r.Header.Get("X-Access-Token") != token("envd", id) && !signed(r, id) {
		envdProblem(w, http.StatusUnauthorized, "the access token is missing or wrong")
		return
	}
	e := &envd{server: s, machine: m, env: env}
	switch {
	case r.URL.Path == "/files":
		if !s.lieAt(CallFiles, w) {
			e.serveFiles(w, r)
		}
	case r.URL.Path == "/metrics":
		writeJSON(w, http.StatusOK, map[string]any{
			"ts": s.now().Unix(), "cpu_count": 2, "cpu_used_pct": 0.5, "mem_total_mib": 512, "mem_used_mib": 64, "mem_total": 512 << 20,
			"mem_used": 64 << 20, "mem_cache": 0, "disk_used": 1 << 20, "disk_total": 2 << 30,
		})
	case r.URL.Path == "/envs":
		if env == nil {
			env = map[string]string{}
		}
		writeJSON(w, http.StatusOK, env)
	case strings.HasPrefix(r.URL.Path, "/process.Process/"):
		e.serveProcess(w, r, strings.TrimPrefix(r.URL.Path, "/process.Process/"))
	case strings.HasPrefix(r.URL.Path, "/filesystem.Filesystem/"):
		e.serveFilesystem(w, r, strings.TrimPrefix(r.URL.Path, "/filesystem.Filesystem/"))
	default:
		http.NotFound(w, r)
	}
}

// lieAt tells a lie that needs no act, where one is due.
func (s *Server) lieAt(call Call, w http.ResponseWriter) bool {
	fault, lies := s.faults.next(call)
	return lies && s.faults.before(fault, w)
}

// awake returns a sandbox that runs; traffic wakes one that is to be woken.
func (s *Server) awake(w http.ResponseWriter, id string) (*machine, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, p := s.lookup(id)
	if p == nil && m.state == none && m.autoResume && m.autoPauseMemory {
		if p := s.resume(m, min(max(m.timeout, 300*time.Second), s.options.MaxRun), true); p != nil {
			edgeProblem(w, p.status, id, "", p.message)
			return nil, false
		}
	}
	switch {
	case p != nil || m.state == none || m.state == killing:
		edgeProblem(w, http.StatusBadGateway, id, "", "the sandbox was not found")
		return nil, false
	case m.state == pausing:
		edgeProblem(w, http.StatusConflict, id, "", "the sandbox is changing its state")
		return nil, false
	case s.now().Before(m.lagging):
		edgeProblem(w, http.StatusBadGateway, id, "", "the sandbox is not known here yet")
		return nil, false
	}
	return m, true
}

// servePort passes on to a port of the sandbox, which is one of the machine.
func (s *Server) servePort(w http.ResponseWriter, r *http.Request, m *machine, port string) {
	s.mu.Lock()
	closed := m.network != nil && m.network.AllowPublicTraffic != nil && !*m.network.AllowPublicTraffic
	s.mu.Unlock()
	if closed && r.Header.Get("E2b-Traffic-Access-Token") != token("traffic", m.id) {
		edgeProblem(w, http.StatusForbidden, m.id, port, "the traffic access token is missing or wrong")
		return
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:" + port})
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
		edgeProblem(w, http.StatusBadGateway, m.id, port, "nothing listens on the port")
	}
	proxy.ServeHTTP(w, r)
}

// signature is that of a URL for a file.
func signature(path, operation, user, token, expires string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// signed tells whether a request carries a signature that fits a sandbox.
func signed(r *http.Request, id string) bool {
	q := r.URL.Query()
	if r.URL.Path != "/files" || !q.Has("signature") {
		return false
	}
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	return q.Get("signature") == signature(q.Get("path"), operation, q.Get("username"), token("envd", id), q.Get("signature_expiration"))
}

// signedFor returns the sandbox whose token a request is signed with.
func (s *Server) signedFor(r *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.machines {
		if signed(r, id) {
			return id
		}
	}
	return ""
}

// envd is the program inside of a sandbox that serves commands and files.
type envd struct {
	server  *Server
	machine *machine
	env     map[string]string
}

func envdProblem(w http.ResponseWriter, status int, format string, args ...any) {
	writeJSON(w, status, map[string]any{"code": status, "message": fmt.Sprintf(format, args...)})
}

// user returns who a request is for, by its Basic authorization or the query.
func user(r *http.Request) string {
	if name, _, ok := r.BasicAuth(); ok && name != "" {
		return name
	}
	if name := r.URL.Query().Get("username"); name != "" {
		return name
	}
	return "user"
}

// The codes of Connect that are used, with their statuses for unary calls.
var connectStatus = map[string]int{
	"invalid_argument": http.StatusBadRequest, "unauthenticated": http.StatusUnauthorized, "not_found": http.StatusNotFound,
	"already_exists": http.StatusConflict, "unimplemented": http.StatusNotFound, "internal": http.StatusInternalServerError,
	"failed_precondition": http.StatusBadRequest,
}

// rpcError is an error as Connect has them.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func rpcFail(code, format string, args ...any) *rpcError {
	return &rpcError{code, fmt.Sprintf(format, args...)}
}

// unary answers one call that is no stream.
func unary(w http.ResponseWriter, r *http.Request, into any, act func() (any, *rpcError)) {
	if !post(w, r, "application/json") {
		return
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into)
	var answer any
	var failed *rpcError
	if err != nil {
		failed = rpcFail("invalid_argument", "unmarshal message: %s", err)
	} else {
		answer, failed = act()
	}
	if failed != nil {
		writeJSON(w, connectStatus[failed.Code], failed)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// post refuses another method or content type, as Connect does.
func post(w http.ResponseWriter, r *http.Request, kinds ...string) bool {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return false
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !slices.Contains(kinds, strings.TrimSpace(kind)) {
		w.Header().Set("Accept-Post", strings.Join(kinds, ", "))
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return false
	}
	return true
}
