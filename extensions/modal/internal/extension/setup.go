// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// What is put into a new sandbox before anybody uses it: the profile's files,
// secrets, and the profile's command.

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	secretsDir = "/run/secrets"
	// mainLog is where the output of the profile's command goes.
	mainLog = "/var/log/sandboxer-main.log"
	// maxContent bounds files and secrets, which are held in memory.
	maxContent = 32 << 20
)

// setup is what is put into a sandbox.
type setup struct {
	archive []byte   // of files and secrets, from the root; nil is none
	clear   bool     // secrets of a snapshot's source are to go
	command []string // the profile's; nil is none
	workdir string
}

func (s setup) empty() bool { return s.archive == nil && !s.clear && len(s.command) == 0 }

// newSetup checks and prepares what a create brings. A sandbox that is made from
// a snapshot has the files already, and no process of its source.
func newSetup(opts sdk.CreateOptions, from origin) (setup, error) {
	p := opts.Profile
	s := setup{clear: from.secrets, command: p.Command, workdir: p.Workdir}
	for _, arg := range p.Command {
		if strings.ContainsRune(arg, 0) {
			return s, sdk.Invalid("command", "an argument holds a zero byte")
		}
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	size, count := 0, 0
	put := func(name string, mode int64, content string) error {
		count++
		if size += len(content); size > maxContent {
			return sdk.Errorf(sdk.ErrQuota, "files and secrets have more than %d bytes", maxContent)
		}
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		return err
	}
	if !from.snapshot {
		for _, name := range slices.Sorted(maps.Keys(p.Files)) {
			mode, err := fileMode(p.Files[name])
			if err != nil || !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) {
				return s, sdk.Invalid("files", "%.80q is not a clean absolute path, or its mode is not octal", name)
			}
			if err := put(name, mode, p.Files[name].Content); err != nil {
				return s, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(opts.Secrets)) {
		if !sdk.IsName(name, 128) || !isVariable(name) {
			return s, sdk.Invalid("secrets", "%.80q is not a secret's name: letters, digits and _ make one", name)
		}
		if err := put(secretsDir+"/"+name, 0o400, string(opts.Secrets[name])); err != nil {
			return s, err
		}
	}
	if err := w.Close(); err != nil {
		return s, err
	}
	if count > 0 {
		s.archive = packed.Bytes()
	}
	return s, nil
}

func fileMode(f sdk.File) (int64, error) {
	if f.Mode == "" {
		return 0o644, nil
	}
	mode, err := strconv.ParseInt(f.Mode, 8, 32)
	if err == nil && (mode < 0 || mode > 0o777) {
		err = fmt.Errorf("mode %q", f.Mode)
	}
	return mode, err
}

const (
	// unpackScript unpacks an archive over the root.
	unpackScript = `set -e
[ -z "$1" ] || rm -rf "$2"
[ -z "$3" ] || tar -xpf - -C / --no-same-owner
if [ -d "$2" ]; then chmod 0700 "$2"; fi`
	// mainScript starts a command that goes on when the script has ended: one
	// that the vendor waits for would be use without end.
	mainScript = `log=$1; shift
mkdir -p "${log%/*}" && : > "$log" || exit 1
"$@" >> "$log" 2>&1 < /dev/null &
exit 0`
)

// setupDeadline bounds what is put into a sandbox.
const setupDeadline = 2 * time.Minute

// setUp makes a sandbox usable. Its first command is also the look whether the
// sandbox takes any: right after a create some do not.
func (e *Extension) setUp(ctx context.Context, f found, s setup) error {
	ctx, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	if s.archive != nil || s.clear {
		removes, archive := "", ""
		if s.clear {
			removes = "yes"
		}
		if s.archive != nil {
			archive = "yes"
		}
		if err := e.script(ctx, f, bytes.NewReader(s.archive), unpackScript, removes, secretsDir, archive); err != nil {
			return fmt.Errorf("unpack files: %w", err)
		}
	}
	if len(s.command) == 0 {
		return nil
	}
	said := &limited{}
	result, err := e.run(ctx, f, command{args: append([]string{"/bin/sh", "-c", mainScript, "sh", mainLog}, s.command...), workdir: s.workdir, stderr: said})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", result.ExitCode, said)
	}
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	return nil
}

// script runs a script.
func (e *Extension) script(ctx context.Context, f found, stdin io.Reader, text string, args ...string) error {
	said := &limited{}
	result, err := e.run(ctx, f, command{args: append([]string{"/bin/sh", "-c", text, "sh"}, args...), workdir: "/", stdin: stdin, stderr: said})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", result.ExitCode, said)
	}
	return err
}

// limited keeps the beginning of what is written.
type limited struct{ kept []byte }

func (l *limited) Write(p []byte) (int, error) {
	const most = 4096
	if room := most - len(l.kept); room > 0 {
		l.kept = append(l.kept, p[:min(len(p), room)]...)
	}
	return len(p), nil
}

func (l *limited) String() string { return strings.ToValidUTF8(string(l.kept), "�") }
