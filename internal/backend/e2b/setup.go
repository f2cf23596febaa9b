// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// What is put into a new sandbox before anybody uses it: the profile's files,
// secrets, and the main process.

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	secretsDir = "/run/secrets"
	// mainLog is where the output of the main process goes.
	mainLog = "/var/log/sandboxer-main.log"
	// maxContent bounds files and secrets, which are held in memory.
	maxContent = 32 << 20
)

// setup is what is put into a sandbox.
type setup struct {
	archive []byte // of files and secrets, from the root; nil is none
	user    string
	command command // the main process; without args there is none
}

// newSetup checks and prepares what a create brings. A sandbox that is made
// from a snapshot has the files, and the main process, already.
func newSetup(opts sdk.CreateOptions, fresh bool) (setup, error) {
	p := opts.Profile
	s := setup{user: p.User, command: command{user: p.User, workdir: p.Workdir}}
	if fresh {
		s.command.args = p.Command
	}
	if err := s.command.check(); err != nil {
		return s, err
	}
	for at, env := range map[string]map[string]string{"profile.env": p.Env, "env": opts.Env} {
		for name, value := range env {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				return s, sdk.Invalid(at, "%.80q is not a variable that a process can have", name)
			}
		}
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	size := 0
	put := func(name string, mode int64, content string) error {
		if size += len(content); size > maxContent {
			return sdk.Errorf(sdk.ErrQuota, "files and secrets have more than %d bytes", maxContent)
		}
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		return err
	}
	if fresh {
		for _, name := range sorted(p.Files) {
			mode, err := fileMode(p.Files[name])
			if err != nil || !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.ContainsRune(name, 0) {
				return s, sdk.Invalid("files", "%.80q is not a clean absolute path, or its mode is not octal", name)
			}
			if err := put(name, mode, p.Files[name].Content); err != nil {
				return s, err
			}
		}
	}
	for _, name := range sorted(opts.Secrets) {
		if !sdk.IsName(name, 128) {
			return s, sdk.Invalid("secrets", "%.80q is not a secret's name: letters, digits, _ . and - make one", name)
		}
		if err := put(secretsDir+"/"+name, 0o400, string(opts.Secrets[name])); err != nil {
			return s, err
		}
	}
	if err := w.Close(); err != nil {
		return s, err
	}
	if size > 0 || len(opts.Secrets) > 0 || (fresh && len(p.Files) > 0) {
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

// unpackScript unpacks an archive over the root and gives the secrets to the
// user of the sandbox; mainScript makes the log that its process can write.
const (
	unpackScript = `set -e
tar -xpf "$1" -C / --no-same-owner
rm -f "$1"
if [ -d "$2" ]; then chown -R "$3" "$2"; chmod 0700 "$2"; fi`
	logScript  = `mkdir -p "${1%/*}" && : > "$1" && chown "$2" "$1"`
	mainScript = `exec "$0" "$@" >> ` + mainLog + ` 2>&1`
)

// defaultUser is envd's own.
const defaultUser = "user"

// setupDeadline bounds what is put into a sandbox.
const setupDeadline = 2 * time.Minute

// setUp makes a sandbox usable.
func (e *Extension) setUp(ctx context.Context, v vendorSandbox, s setup) error {
	ctx, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	if err := e.awaitEnvd(ctx, v); err != nil {
		return err
	}
	a, err := e.accessOf(ctx, v)
	if err != nil {
		return err
	}
	user := s.user
	if user == "" {
		user = defaultUser
	}
	if s.archive != nil {
		// /run is in memory where the template has it so.
		const name = "/run/.sandboxer.tar"
		if err := e.upload(ctx, a, name, "root", bytes.NewReader(s.archive)); err != nil {
			return fmt.Errorf("send files: %w", err)
		}
		if err := e.script(ctx, a, unpackScript, name, secretsDir, user); err != nil {
			return fmt.Errorf("unpack files: %w", err)
		}
	}
	if len(s.command.args) == 0 {
		return nil
	}
	if err := e.script(ctx, a, logScript, mainLog, user); err != nil {
		return fmt.Errorf("make the log: %w", err)
	}
	return e.startMain(ctx, a, s.command)
}

// script runs a script as root.
func (e *Extension) script(ctx context.Context, a access, text string, args ...string) error {
	said := &limited{}
	end, err := e.follow(ctx, a, command{user: "root", stderr: said}, startRequest{
		Process: process{Cmd: "/bin/sh", Args: append([]string{"-c", text, "sh"}, args...), Cwd: "/"},
	})
	if err == nil && end.code() != 0 {
		err = fmt.Errorf("exit code %d: %s", end.code(), clip(e.client.mask(said.String())))
	}
	return err
}

// startMain starts the main process, which goes on by itself.
func (e *Extension) startMain(ctx context.Context, a access, c command) error {
	stream, err := e.start(ctx, a, c.user, startRequest{
		Process: process{Cmd: "/bin/sh", Args: append([]string{"-c", mainScript}, c.args...), Cwd: c.workdir}, Tag: "sandboxer-main",
	}, 0)
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	event, err := stream.next()
	if err == nil && event.Start == nil {
		err = errors.New("the sandbox did not say that it was started")
	}
	if err != nil {
		err = fmt.Errorf("start the command: %w", err)
	}
	return errors.Join(err, stream.close())
}

// limited keeps the beginning of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	const most = 4096
	if room := most - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
