// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// The files of a sandbox, and where its processes run.

import (
	"path"
	"path/filepath"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/jail"
)

// root is the root directory of a sandbox and what runs in it.
type root struct {
	*jail.Jail
	table processTable
}

// newRoot returns a root with an image's files; an empty source is an empty one.
func (s *Server) newRoot(id, source string) *root {
	r := &root{Jail: jail.New(jail.Options{Dir: filepath.Join(s.options.Dir, id+"-"+randomID(6)), Source: source})}
	r.table.clock, r.table.life = s.options.Clock, s.life
	return r
}

// inside resolves a path of the sandbox, which may begin at a home, to one of
// the machine.
func (r *root) inside(name, home string) (string, error) {
	if !path.IsAbs(name) {
		name = path.Join(home, name)
	}
	return r.Inside(name)
}

// homeOf returns the home directory of an account; ok is false for one that
// is not there.
func homeOf(user string) (home string, ok bool) {
	switch user {
	case "", "user":
		return "/home/user", true
	case "root":
		return "/root", true
	}
	return "", false
}
