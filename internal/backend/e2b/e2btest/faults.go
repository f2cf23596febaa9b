// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// The ways in which the service goes wrong, between the routes and whoever
// asks.

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Call names what a request asks for.
type Call string

// The calls of the control plane, and those of a sandbox.
const (
	CallCreate         Call = "create"
	CallConnect        Call = "connect"
	CallList           Call = "list"
	CallGet            Call = "get"
	CallDelete         Call = "delete"
	CallTimeout        Call = "timeout"
	CallRefresh        Call = "refresh"
	CallPause          Call = "pause"
	CallSnapshot       Call = "snapshot"
	CallFork           Call = "fork"
	CallNetwork        Call = "network"
	CallLogs           Call = "logs"
	CallMetrics        Call = "metrics"
	CallSnapshots      Call = "snapshots"
	CallTemplates      Call = "templates"
	CallTemplate       Call = "template"
	CallBuild          Call = "build"
	CallBuildStatus    Call = "build_status"
	CallDeleteTemplate Call = "delete_template"
	CallTags           Call = "tags"

	CallHealth  Call = "health"
	CallFiles   Call = "files"
	CallProcess Call = "process" // every method of process.Process
	CallStart   Call = "start"   // process.Process/Start alone
)

// Calls returns the calls of the control plane that the adapter makes.
func Calls() []Call {
	return []Call{
		CallCreate, CallConnect, CallList, CallGet, CallDelete, CallTimeout, CallPause, CallSnapshot, CallSnapshots, CallDeleteTemplate,
	}
}

// Lie is one way in which a call goes wrong.
type Lie string

// The lies. Where one makes no sense for a call, the call is honest.
const (
	LoseRequest   Lie = "lose_request"    // it never arrives; the connection ends
	LoseAnswer    Lie = "lose_answer"     // it is carried out; the connection ends
	Slow          Lie = "slow"            // the answer takes For longer, by the service's clock
	Truncate      Lie = "truncate"        // it is carried out; half of the answer's body comes
	Refuse        Lie = "refuse"          // Status and Code, and nothing is done
	RateLimited   Lie = "rate_limited"    // 429 with Retry-After: For in whole seconds, at least 1
	Quota         Lie = "quota"           // 429 without
	EmptyNotFound Lie = "empty_not_found" // 404 without a body
	NotFound      Lie = "not_found"       // 404 as the service says it, for what is there
	ProxyPage     Lie = "proxy_page"      // 502 in HTML, from something in between
	Pretend       Lie = "pretend"         // a delete: 204, and nothing is done
	Clamp         Lie = "clamp"           // a create or timeout: the end is For earlier than asked
	DieEarly      Lie = "die_early"       // a create: dead right after
	NoEnvdVersion Lie = "no_envd_version" // a create: the answer lacks a required field
	KillSource    Lie = "kill_source"     // a snapshot: 500, and the sandbox is dead
	RepeatPage    Lie = "repeat_page"     // a list: the first page again
	DropPage      Lie = "drop_page"       // a list: an empty page in place of one, and the end
	EndlessPages  Lie = "endless_pages"   // a list: there is always a next page
	StaleList     Lie = "stale_list"      // a list: empty, as it was before everything
	CutStream     Lie = "cut_stream"      // a process: the stream ends before the end event
	NoEndFrame    Lie = "no_end_frame"    // a process: the stream lacks its last frame
	ErrorFrame    Lie = "error_frame"     // a process: the last frame is an error
)

// Fault is one lie, told at a certain occurrence of a call.
type Fault struct {
	Call   Call
	Lie    Lie
	On     int // at which call from now, from 1; 0 is at every one
	For    time.Duration
	Status int    // of Refuse
	Code   string // error_code of Refuse
}

// Inject adds faults to those that are in force. The first that fits a call is
// told.
func (s *Server) Inject(injected ...Fault) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, fault := range injected {
		s.faults.armed = append(s.faults.armed, &armed{Fault: fault})
	}
}

// Heal ends all faults.
func (s *Server) Heal() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.armed = nil
}

// armed is a fault that counts the calls that it could be told at.
type armed struct {
	Fault
	seen int
}

type faults struct {
	server *Server
	mu     sync.Mutex
	armed  []*armed
}

// next decides about one call.
func (f *faults) next(call Call) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, a := range f.armed {
		if a.Call != call {
			continue
		}
		a.seen++
		if a.On == 0 || a.On == a.seen {
			if a.On != 0 {
				f.armed = slices.Delete(f.armed, i, i+1)
			}
			return a.Fault, true
		}
	}
	return Fault{}, false
}

// cut ends the connection without an answer.
func cut() { panic(http.ErrAbortHandler) }

// before tells the lies that keep a call from being carried out. It returns
// true when the answer has been given.
func (f *faults) before(fault Fault, w http.ResponseWriter) bool {
	switch fault.Lie {
	case LoseRequest:
		cut()
	case Refuse:
		(&problem{status: fault.Status, code: fault.Code, message: "a fault that was asked for"}).write(w)
	case RateLimited:
		(&problem{status: http.StatusTooManyRequests, message: "too many requests", retryAfter: max(1, int(fault.For/time.Second))}).write(w)
	case Quota:
		fail(http.StatusTooManyRequests, "the team is at its limit of concurrent sandboxes").write(w)
	case EmptyNotFound:
		w.WriteHeader(http.StatusNotFound)
	case NotFound:
		fail(http.StatusNotFound, "it does not exist").write(w)
	case ProxyPage:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, "<html><body><h1>502 Bad Gateway</h1></body></html>")
	default:
		return false
	}
	return true
}

// answer answers one call of the control plane, by a lie where one is due.
func (f *faults) answer(call Call, w http.ResponseWriter, r *request, handle handler) {
	fault, lies := f.next(call)
	if lies && f.before(fault, w) {
		return
	}
	if lies && fault.Lie == Pretend && call == CallDelete {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if lies && call == CallList {
		f.list(fault, w, r, handle)
		return
	}
	said, p := handle(r)
	if lies && p == nil {
		said, p = f.after(fault, call, r, said)
	}
	switch {
	case lies && fault.Lie == LoseAnswer:
		cut()
	case lies && fault.Lie == Slow:
		f.server.pause(fault.For)
	}
	if p != nil {
		p.write(w)
		return
	}
	if lies && fault.Lie == Truncate && said.body != nil {
		truncated(w, said)
		return
	}
	send(w, said)
}

// truncated sends half of an answer and ends the connection.
func truncated(w http.ResponseWriter, said answer) {
	whole, _ := json.Marshal(said.body) // the types of this package always encode
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(said.status)
	_, _ = w.Write(whole[:len(whole)/2])
	_ = http.NewResponseController(w).Flush() // what was cut off is the point
	cut()
}

// after changes what a call has done.
func (f *faults) after(fault Fault, call Call, r *request, said answer) (answer, *problem) {
	s := f.server
	id := r.id()
	if made, ok := said.body.(sandboxJSON); ok {
		id = made.SandboxID
	}
	switch {
	case fault.Lie == Clamp && (call == CallCreate || call == CallTimeout):
		s.mu.Lock()
		if m := s.machines[id]; m != nil {
			m.ends = m.ends.Add(-fault.For)
		}
		s.mu.Unlock()
	case fault.Lie == DieEarly && call == CallCreate:
		_ = s.Kill(id) // it was made right now
	case fault.Lie == NoEnvdVersion && call == CallCreate:
		said.body = map[string]string{"sandboxID": id}
	case fault.Lie == KillSource && call == CallSnapshot:
		_ = s.Kill(id) // it may have ended by itself
		if made, ok := said.body.(snapshotInfo); ok {
			s.mu.Lock()
			if t, _, p := s.find(made.SnapshotID); p == nil {
				delete(s.templates, t.id)
				delete(s.aliases, t.alias)
			}
			s.mu.Unlock()
		}
		return said, fail(http.StatusInternalServerError, "the snapshot failed and the sandbox is lost")
	}
	return said, nil
}

// list tells the lies about pages.
func (f *faults) list(fault Fault, w http.ResponseWriter, r *request, handle handler) {
	values := r.http.URL.Query()
	switch fault.Lie {
	case RepeatPage, EndlessPages:
		if values.Get("nextToken") != "" {
			values.Del("nextToken")
			r.http.URL.RawQuery = values.Encode()
		}
	}
	said, p := handle(r)
	switch fault.Lie {
	case LoseAnswer:
		cut()
	case Slow:
		f.server.pause(fault.For)
	}
	if p != nil {
		p.write(w)
		return
	}
	page, _ := said.body.([]listed)
	switch fault.Lie {
	case Truncate:
		truncated(w, said)
		return
	case StaleList:
		said.body = []listed{}
		said.header.Del("X-Next-Token")
		said.header.Set("X-Total-Running", "0")
	case DropPage:
		// One that was to come, or the only one: its total still tells.
		said.body = []listed{}
	case EndlessPages:
		if len(page) > 0 {
			last := page[len(page)-1]
			said.header.Set("X-Next-Token", cursor{last.StartedAt, last.SandboxID}.encode(strings.Contains(r.http.URL.RawQuery, "order=asc")))
		}
	}
	send(w, said)
}
