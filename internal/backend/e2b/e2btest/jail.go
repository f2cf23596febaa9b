// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// The files of a sandbox, and where its processes run.

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// jail is the root directory of a sandbox and what runs in it. It is made when
// it is first used: most sandboxes of a test never run anything.
type jail struct {
	dir    string // of the root
	source string // an image's files; empty is an empty root
	table  processTable

	mu     sync.Mutex
	made   bool
	closed bool
	holder holder
}

func (s *Server) newJail(id, source string) *jail {
	j := &jail{dir: filepath.Join(s.options.Dir, id+"-"+randomID(6)), source: source}
	j.table.clock, j.table.life = s.options.Clock, s.life
	return j
}

var errGone = errors.New("the sandbox is gone")

// The accounts of a sandbox.
const (
	passwd = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
	group  = "root:x:0:\nuser:x:1000:\n"
)

// open makes the root where it is not there yet.
func (j *jail) open() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return errGone
	}
	if j.made {
		return nil
	}
	for _, dir := range []string{"", "etc", "root", "home/user", "run", "srv", "var/lib", "var/log", "var/tmp", "tmp", "usr", "proc", "dev", "opt"} {
		if err := os.MkdirAll(filepath.Join(j.dir, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(j.dir, dir), 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"etc/passwd": passwd, "etc/group": group, "etc/hostname": "e2b.local\n"} {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if j.source != "" {
		if err := copyTree(j.source, j.dir); err != nil {
			return err
		}
	}
	j.made = true
	return nil
}

// copyTo copies the files to another directory.
func (j *jail) copyTo(dir string) error {
	j.mu.Lock()
	made := j.made
	j.mu.Unlock()
	if made {
		return copyTree(j.dir, dir)
	}
	if j.source != "" {
		return copyTree(j.source, dir)
	}
	return nil
}

// hosts are the directories of a root that belong to the machine.
var hosts = map[string]bool{"usr": true, "proc": true, "dev": true, "bin": true, "sbin": true, "lib": true, "lib32": true, "lib64": true, "libx32": true}

// copyTree copies directories, files and links with their modes, over what is
// there.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went while the copy was made
			}
			return err
		}
		rest, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if hosts[rest] {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rest)
		switch {
		case entry.IsDir():
			if err := os.MkdirAll(target, 0o700); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			if err := copyFile(name, target); err != nil {
				return err
			}
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		default:
			return nil
		}
		// Not when it is made: a mask would change it.
		return os.Chmod(target, info.Mode())
	})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// inside resolves a path of the sandbox to one of the machine, following links
// as the sandbox would, so that none leads out of the root.
func (j *jail) inside(name, home string) (string, error) {
	if !path.IsAbs(name) {
		name = path.Join(home, name)
	}
	const most = 40
	done, rest := "/", strings.Trim(path.Clean(name), "/")
	for links := 0; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, part)
		link, err := os.Readlink(filepath.Join(j.dir, next))
		if err != nil {
			done = next // no link; whether it is there is for whoever opens it
			continue
		}
		if links++; links > most {
			return "", errors.New("too many links")
		}
		if !path.IsAbs(link) {
			link = path.Join(done, link)
		}
		done, rest = "/", strings.Trim(path.Clean(path.Join(link, rest)), "/")
	}
	return filepath.Join(j.dir, done), nil
}

// freeze stops every process where it is; thaw lets them go on.
func (j *jail) freeze() { j.signal(stopSignal) }
func (j *jail) thaw()   { j.signal(contSignal) }

// killAll ends every process.
func (j *jail) killAll() { j.signal(killSignal) }

// close ends every process and removes the files.
func (j *jail) close() {
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.mu.Unlock()
	if closed {
		return
	}
	j.killAll()
	j.holder.close()
	_ = os.RemoveAll(j.dir) // what is left goes with the server's directory
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
