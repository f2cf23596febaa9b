// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package jail runs real commands in a directory, for servers that play a
// vendor in tests: a mount namespace of its own with the machine's programs
// bound read-only below the directory, and chroot into that. It keeps a test's
// files apart from the machine's. It is no isolation, and no sandbox.
package jail

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

// Options are the options of [New].
type Options struct {
	// Dir is the root, which is made when it is first needed.
	Dir string
	// Source is a directory whose files the root begins with; empty is none.
	Source string
	// Binds are directories of the machine that are seen in the jail, by
	// their absolute path there.
	Binds map[string]string
}

// Jail is a root directory and what runs in it.
type Jail struct {
	options Options

	mu     sync.Mutex
	made   bool
	closed bool
	holder holder
}

// New returns a jail. Nothing is made before it is used: most of a test's
// never run anything.
func New(options Options) *Jail { return &Jail{options: options} }

// ErrGone is met by whoever uses a jail that is closed.
var ErrGone = errors.New("the jail is gone")

// The accounts in a jail.
const (
	passwd = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
	group  = "root:x:0:\nuser:x:1000:\n"
)

// Open makes the root where it is not there yet.
func (j *Jail) Open() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrGone
	}
	if j.made {
		return nil
	}
	dir := j.options.Dir
	for _, name := range []string{"", "etc", "root", "home/user", "run", "srv", "var/lib", "var/log", "var/tmp", "tmp", "usr", "proc", "dev", "opt"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"etc/passwd": passwd, "etc/group": group, "etc/hostname": "jail\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if j.options.Source != "" {
		if err := CopyTree(j.options.Source, dir); err != nil {
			return err
		}
	}
	j.made = true
	return nil
}

// CopyTo copies the jail's files to another directory.
func (j *Jail) CopyTo(dir string) error {
	j.mu.Lock()
	made := j.made
	j.mu.Unlock()
	switch {
	case made:
		return CopyTree(j.options.Dir, dir)
	case j.options.Source != "":
		return CopyTree(j.options.Source, dir)
	}
	return nil
}

// machines are the directories of a root that belong to the machine.
var machines = map[string]bool{"usr": true, "proc": true, "dev": true, "bin": true, "sbin": true, "lib": true, "lib32": true, "lib64": true, "libx32": true}

// CopyTree copies directories, files and links with their modes, over what is
// there. What the machine binds into a jail's root is left out.
func CopyTree(from, to string) error {
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
		if machines[rest] {
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

// Inside resolves an absolute path in the jail to one of the machine,
// following links as the jail would, so that none leads out of the root.
func (j *Jail) Inside(name string) (string, error) {
	const most = 40
	done, rest := "/", strings.Trim(path.Clean(name), "/")
	for links := 0; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, part)
		link, err := os.Readlink(j.machine(next))
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
	return j.machine(done), nil
}

// machine returns where a path without links is on the machine.
func (j *Jail) machine(name string) string {
	for at, dir := range j.options.Binds {
		if rest, ok := strings.CutPrefix(name, at); ok && (rest == "" || rest[0] == '/') {
			return filepath.Join(dir, rest)
		}
	}
	return filepath.Join(j.options.Dir, name)
}

// Freeze stops every process where it is; Thaw lets them go on.
func (j *Jail) Freeze() { j.signal(stopSignal) }

// Thaw lets the processes go on that Freeze has stopped.
func (j *Jail) Thaw() { j.signal(contSignal) }

// KillAll ends every process.
func (j *Jail) KillAll() { j.signal(killSignal) }

// Close ends every process and removes the files.
func (j *Jail) Close() {
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.mu.Unlock()
	if closed {
		return
	}
	j.KillAll()
	j.holder.close()
	_ = os.RemoveAll(j.options.Dir) // what is left goes with the directory above
}
