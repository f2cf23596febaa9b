// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// A sandbox and its end.

import (
	"maps"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/jail"
)

type sandbox struct {
	id, task, app, environment, name string
	v1                               bool
	definition                       *pb.Sandbox
	tags                             map[string]string
	env                              map[string]string

	created, scheduled, ends time.Time
	idle                     time.Duration // zero is none
	active                   time.Time     // when something was last under way
	busy                     int           // what is under way

	jail *jail.Jail
	main *process // of the entrypoint; nil until it is scheduled, or without one

	result   *pb.GenericResult // nil while it runs
	finished time.Time
	done     chan struct{} // closed at its end
	exit     string        // the image of its end

	mu        sync.Mutex // of what follows
	processes map[string]*process
	snapshots map[string]string // images by the snapshot's id
	network   *pb.NetworkAccess
}

// evict ends whatever is past its time.
func (s *Server) evict() {
	s.mu.Lock()
	var due []func()
	now := s.now()
	for _, sb := range s.sandboxes {
		switch {
		case sb.result != nil:
		case !now.Before(sb.ends):
			due = append(due, s.finish(sb, pb.GenericResult_GENERIC_STATUS_TIMEOUT, 124, "the lifetime is over"))
		case sb.idle > 0 && sb.busy == 0 && !now.Before(sb.active.Add(sb.idle)):
			// Which exit code the vendor gives is not known; clients show it.
			due = append(due, s.finish(sb, pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, 0, "it was idle"))
		}
	}
	s.mu.Unlock()
	for _, finish := range due {
		finish()
	}
}

// finish ends a sandbox. The caller holds the lock, and calls what is returned
// when it does not any more.
func (s *Server) finish(sb *sandbox, code pb.GenericResult_GenericStatus, exit int32, why string) func() {
	sb.result = pb.GenericResult_builder{Status: code, Exitcode: exit, Exception: why}.Build()
	sb.finished = s.now()
	if sb.definition.GetExperimentalOptionsV2()["enable_exit_snapshot"] != "" {
		if dir, err := s.newDir("image"); err == nil && sb.jail.CopyTo(dir) == nil {
			sb.exit = mint("im-", alphanumeric, 22)
			s.images[sb.exit] = &image{id: sb.exit, dir: dir, snapshot: true, expires: sb.finished.Add(snapshotLife)}
		}
	}
	return func() {
		sb.jail.Close()
		close(sb.done)
	}
}

// use marks that something is under way until it is called again.
func (s *Server) use(sb *sandbox) (ended func()) {
	s.mu.Lock()
	sb.busy++
	s.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			sb.busy--
			sb.active = s.now()
		})
	}
}

// find returns a sandbox of a generation.
func (s *Server) find(id string, v1 bool) (*sandbox, error) {
	s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[id]
	if sb == nil || sb.v1 != v1 {
		return nil, status.Errorf(codes.NotFound, "Sandbox with ID %s not found", id)
	}
	return sb, nil
}

// outcome returns how a sandbox ended; nil while it runs.
func (s *Server) outcome(sb *sandbox) *pb.GenericResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb.result == nil {
		return nil
	}
	return clone(sb.result)
}

func clone[M proto.Message](m M) M {
	copied, ok := proto.Clone(m).(M)
	if !ok {
		return m // a clone is of the type of what was cloned
	}
	return copied
}

// pending tells whether a sandbox is not scheduled yet. The caller holds the
// lock.
func (s *Server) pending(sb *sandbox) bool { return s.now().Before(sb.scheduled) }

func tagsOf(list []*pb.SandboxTag) map[string]string {
	tags := map[string]string{}
	for _, tag := range list {
		tags[tag.GetTagName()] = tag.GetTagValue()
	}
	return tags
}

func tagList(tags map[string]string) []*pb.SandboxTag {
	var list []*pb.SandboxTag
	for name, value := range tags {
		list = append(list, pb.SandboxTag_builder{TagName: name, TagValue: value}.Build())
	}
	return list
}

// holds reports whether tags have all that is wanted.
func holds(tags, wanted map[string]string) bool {
	for name, value := range wanted {
		if have, ok := tags[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// environ is the environment that a process begins with.
func (sb *sandbox) environ(more ...map[string]string) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "MODAL_SANDBOX_ID": sb.id, "MODAL_TASK_ID": sb.task,
	}
	maps.Copy(env, sb.env)
	for _, m := range more {
		maps.Copy(env, m)
	}
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}
