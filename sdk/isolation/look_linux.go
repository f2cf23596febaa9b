// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Look looks from inside of the sandbox that the calling process is in, as the
// process's own user and with its environment. It writes nothing, and what it
// returns holds no value that it has read.
func Look(ctx context.Context, expect Expect) []sdk.Finding {
	l := &look{Findings: New(sdk.SideInside), expect: expect}
	l.processes()
	l.environment()
	l.arguments()
	l.homes()
	l.tokens()
	l.secrets()
	l.network(ctx)
	l.mounts()
	l.devices()
	l.namespaces()
	l.privileges()
	return l.List()
}

// look is one look.
type look struct {
	*Findings
	expect Expect
	list   []process
	failed error // why the processes could not be listed
	env    map[string]string
}

// process is what can be seen of one process.
type process struct {
	pid     int
	args    []string
	environ []string
	closed  bool // its environment may not be read
}

func (p process) String() string {
	name := "process " + strconv.Itoa(p.pid)
	if len(p.args) > 0 {
		name += " (" + Quote(filepath.Base(p.args[0])) + ")"
	}
	return name
}

// The bounds of a look.
const (
	maxProcesses = 4096
	maxRead      = 1 << 20 // of one file, in bytes
	maxEntries   = 4096    // of one directory
)

// read reads a file up to its bound.
func read(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not hold it up
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}

// split takes apart what the kernel ends with zero bytes.
func split(content []byte) []string {
	content = bytes.TrimSuffix(content, []byte{0})
	if len(content) == 0 {
		return nil
	}
	return strings.Split(string(content), "\x00")
}

// processes lists the processes and reads what they are.
func (l *look) processes() {
	l.env = map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		l.env[name] = value
	}
	entries, err := list("/proc")
	if err != nil {
		l.failed = err
		return
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if len(l.list) == maxProcesses {
			l.failed = errors.New("there are more than " + strconv.Itoa(maxProcesses) + " processes")
			return
		}
		p := process{pid: pid}
		if content, err := read("/proc/" + entry + "/cmdline"); err == nil {
			p.args = split(content)
		}
		content, err := read("/proc/" + entry + "/environ")
		if p.environ = split(content); err != nil {
			p.closed = true
		}
		l.list = append(l.list, p)
	}
}

// list returns the names in a directory, as many as its bound.
func list(dir string) ([]string, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(maxEntries + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil && len(names) > maxEntries {
		err = errors.New(dir + " has more than " + strconv.Itoa(maxEntries) + " entries")
	}
	slices.Sort(names)
	return names, err
}

// why is an error without the path in it, which the evidence names.
func why(err error) string {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err.Error()
	}
	return err.Error()
}

// environment judges what a command gets, and what other processes let be read.
func (l *look) environment() {
	const check = sdk.CheckEnvironment
	judge := func(where string, pairs []string) {
		for _, pair := range pairs {
			name, value, _ := strings.Cut(pair, "=")
			if reason, is := Variable(name, value); is {
				l.Failed(check, "the variable "+Quote(name)+" in the environment of "+where+" "+reason)
			}
		}
	}
	judge("a command", os.Environ())
	if l.failed != nil {
		l.Unknown(check, "the processes could not be listed: "+why(l.failed))
		return
	}
	open := 0
	for _, p := range l.list {
		if !p.closed {
			open++
		}
		judge(p.String(), p.environ)
	}
	l.Passed(check, "a command's environment has "+strconv.Itoa(len(os.Environ()))+" variables; "+
		strconv.Itoa(open)+" of "+strconv.Itoa(len(l.list))+" processes let theirs be read; none holds a credential")
}

func (l *look) arguments() {
	const check = sdk.CheckArguments
	if l.failed != nil {
		l.Unknown(check, "the processes could not be listed: "+why(l.failed))
		return
	}
	for _, p := range l.list {
		if i, reason, is := Arguments(p.args); is {
			l.Failed(check, "argument "+strconv.Itoa(i)+" of "+p.String()+" "+reason)
		}
	}
	l.Passed(check, "no argument of "+strconv.Itoa(len(l.list))+" processes is a credential")
}

// secrets looks at the canary: where it is supposed to be, and where not.
func (l *look) secrets() {
	const check = sdk.CheckSecrets
	if l.expect.Canary == "" {
		l.Unknown(check, "the sandbox has no secret to look for")
		return
	}
	file := filepath.Join(SecretsDir, l.expect.Canary)
	value, err := read(file)
	if err != nil || len(value) == 0 {
		l.Unknown(check, "the secret's own file can't be read: "+why(errors.Join(err, errors.New("it is empty or closed"))))
		return
	}
	var st unix.Stat_t
	var fsys unix.Statfs_t
	if err := errors.Join(unix.Stat(file, &st), unix.Statfs(file, &fsys)); err != nil {
		l.Unknown(check, "the secret's own file can't be looked at: "+why(err))
		return
	}
	if st.Mode&0o077 != 0 {
		l.Failed(check, "the secret's own file has the mode "+strconv.FormatUint(uint64(st.Mode&0o777), 8)+", which others may read")
	}
	if fsys.Type != unix.TMPFS_MAGIC {
		l.Failed(check, "the secret's own file is not on a tmpfs: it is stored on a disk")
	}
	if l.failed != nil {
		l.Unknown(check, "the processes could not be listed: "+why(l.failed))
		return
	}
	holds := func(texts []string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, string(value)) })
	}
	if holds(os.Environ()) {
		l.Failed(check, "the secret's value is in the environment of a command")
	}
	for _, p := range l.list {
		if holds(p.environ) {
			l.Failed(check, "the secret's value is in the environment of "+p.String())
		}
		if holds(p.args) {
			l.Failed(check, "the secret's value is an argument of "+p.String())
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		l.copies(dir, value)
	}
	l.Passed(check, "a secret that the sandbox was made with is in its file, on a tmpfs, for its user alone, in no environment, argument or file for others")
}

// copies finds a value in files that lie openly in a directory.
func (l *look) copies(dir string, value []byte) {
	names, err := list(dir)
	if err != nil {
		return // a place that is not there, or that the workload can't see either
	}
	for _, name := range names {
		name = filepath.Join(dir, name)
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if content, err := read(name); err == nil && bytes.Contains(content, value) {
			l.Failed(sdk.CheckSecrets, "the secret's value is in the file "+Quote(name))
		}
	}
}
