// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Files in and out, the main process's log, and pausing.

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func fileRules() []Rule {
	rule := func(name, title string, try func(c *check)) Rule {
		return Rule{ID: "files/" + name, Title: title, Features: []sdk.Feature{sdk.FeatureFiles}, try: try}
	}
	return []Rule{
		rule("round_trip", "files come out as they went in: names, content, modes", filesRoundTrip),
		rule("large", "a file of four megabytes comes out as it went in", filesLarge),
		rule("directories", "empty directories and the modes of directories are kept", filesDirectories),
		rule("symlinks", "a symbolic link is kept as one, or refused as unsupported", filesSymlinks),
		rule("one_file", "one file comes out under its own name", filesOneFile),
		rule("profile", "the profile's files are there, with their modes", filesProfile),
		rule("hostile", "no entry of an archive lands outside of the directory", filesHostile),
		rule("missing", "copying out what is not there is an error, not an empty archive", filesMissing),
	}
}

func archive(entries ...tar.Header) io.Reader {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, e := range entries {
		// The content travels in the user's name: every entry here is small.
		content := e.Uname
		e.Uname, e.Size = "", int64(len(content))
		e.ModTime = time.Unix(1_700_000_000, 0)
		_ = w.WriteHeader(&e) // to memory, from our own headers
		_, _ = io.WriteString(w, content)
	}
	_ = w.Close()
	return &packed
}

func file(name, content string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: content, Mode: mode}
}

// entry is what came out.
type entry struct {
	kind    byte
	mode    int64
	content string
	link    string
}

func (c *check) copyIn(target sdk.Target, dir string, entries ...tar.Header) error {
	_, err := ability[sdk.Copier](c, c.kit.a).CopyIn(c.ctx, sdk.CopyInOptions{Target: target, Path: dir, Archive: archive(entries...)})
	return err
}

// copyOut returns what is at a path, by name.
func (c *check) copyOut(target sdk.Target, from string) (map[string]entry, error) {
	var packed limited
	if _, err := ability[sdk.Copier](c, c.kit.b).CopyOut(c.ctx, sdk.CopyOutOptions{Target: target, Path: from, Archive: &packed}); err != nil {
		return nil, err
	}
	found := map[string]entry{}
	for r := tar.NewReader(strings.NewReader(packed.String())); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("what came out of %s is no archive: %w", from, err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("what came out of %s is no archive: %w", from, err)
		}
		found[path.Clean(header.Name)] = entry{header.Typeflag, header.Mode & 0o7777, string(content), header.Linkname}
	}
}

const filesDir = "/tmp/conformance/tree"

func filesRoundTrip(c *check) {
	_, target := c.ready(c.creation())
	in := []tar.Header{file("a.txt", "hello\n", 0o640), file("bin/run", "#!/bin/sh\n", 0o755), file("deep/er/ünïcode name", "x", 0o600), file("empty", "", 0o444)}
	err := c.copyIn(target, filesDir, in...)
	c.failIf(err != nil, "copy in: %v", err)
	out, err := c.copyOut(target, filesDir)
	c.failIf(err != nil, "copy out: %v", err)
	for _, want := range in {
		got, ok := out["tree/"+want.Name]
		c.failIf(!ok, "%q is not there; the archive has %q", "tree/"+want.Name, names(out))
		c.failIf(got.content != want.Uname, "%s holds %q, not %q", want.Name, got.content, want.Uname)
		c.failIf(got.mode != want.Mode, "%s has mode %o, not %o", want.Name, got.mode, want.Mode)
	}
	for name := range out {
		c.failIf(name != "tree" && !strings.HasPrefix(name, "tree/"), "the name %q does not begin with the base name of the path", name)
	}
	// A second archive adds and replaces.
	err = c.copyIn(target, filesDir, file("a.txt", "again", 0o600))
	c.failIf(err != nil, "copy in over what is there: %v", err)
	out, err = c.copyOut(target, filesDir)
	c.failIf(err != nil || out["tree/a.txt"].content != "again" || out["tree/empty"].kind != tar.TypeReg, "after a second archive: %q, %v", names(out), err)
}

func names(found map[string]entry) (all []string) {
	for name := range found {
		all = append(all, name)
	}
	return all
}

func filesLarge(c *check) {
	_, target := c.ready(c.creation())
	content := strings.Repeat("0123456789abcdef", 4*megabyte/16)
	err := c.copyIn(target, filesDir, file("large", content, 0o644))
	c.failIf(err != nil, "copy in: %v", err)
	out, err := c.copyOut(target, filesDir+"/large")
	c.failIf(err != nil || out["large"].content != content, "%d bytes came out, %v", len(out["large"].content), err)
}

func filesDirectories(c *check) {
	_, target := c.ready(c.creation())
	err := c.copyIn(target, filesDir,
		tar.Header{Typeflag: tar.TypeDir, Name: "empty/", Mode: 0o755}, tar.Header{Typeflag: tar.TypeDir, Name: "private/", Mode: 0o700}, file("private/f", "x", 0o600))
	c.failIf(err != nil, "copy in: %v", err)
	out, err := c.copyOut(target, filesDir)
	c.failIf(err != nil, "copy out: %v", err)
	c.failIf(out["tree/empty"].kind != tar.TypeDir, "the empty directory is gone: %q", names(out))
	c.failIf(out["tree/private"].mode != 0o700, "a directory of mode 700 came out with %o", out["tree/private"].mode)
}

func filesSymlinks(c *check) {
	_, target := c.ready(c.creation())
	err := c.copyIn(target, filesDir, file("real", "content", 0o644), tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "real"})
	if err != nil {
		c.is(err, "an archive with a symbolic link", sdk.ErrUnsupported)
		return
	}
	out, err := c.copyOut(target, filesDir)
	c.failIf(err != nil, "copy out: %v", err)
	c.failIf(out["tree/link"].kind != tar.TypeSymlink || out["tree/link"].link != "real", "the link came out as %+v", out["tree/link"])
}

func filesOneFile(c *check) {
	_, target := c.ready(c.creation())
	c.need(c.copyIn(target, filesDir, file("one", "only me", 0o644), file("two", "not me", 0o644)), "copy in")
	out, err := c.copyOut(target, filesDir+"/one")
	c.failIf(err != nil || len(out) != 1 || out["one"].content != "only me", "%q, %v", names(out), err)
}

func filesProfile(c *check) {
	_, target := c.ready(c.creation(func(p *sdk.Profile) {
		p.Files = map[string]sdk.File{"/etc/conformance/a": {Content: "from the profile\n"}, "/etc/conformance/b": {Content: "#!", Mode: "0750"}}
	}))
	for name, want := range map[string]entry{"a": {content: "from the profile\n", mode: 0o644}, "b": {content: "#!", mode: 0o750}} {
		out, err := c.copyOut(target, "/etc/conformance/"+name)
		c.failIf(err != nil, "copy out: %v", err)
		c.failIf(out[name].content != want.content || out[name].mode != want.mode, "%s is %q with mode %o", name, out[name].content, out[name].mode)
	}
}

func filesHostile(c *check) {
	_, target := c.ready(c.creation())
	c.need(c.copyIn(target, "/tmp/conformance/outside", file("precious", "as it was", 0o644)), "copy in")
	for name, entries := range map[string][]tar.Header{
		"a name with ..":                 {file("../outside/escaped", "x", 0o644)},
		"a name that turns back":         {file("a/../../outside/escaped", "x", 0o644)},
		"an absolute name":               {file("/tmp/conformance/outside/escaped", "x", 0o644)},
		"a write through a link":         {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/tmp/conformance/outside"}, file("l/escaped", "x", 0o644)},
		"a write through a link with ..": {{Typeflag: tar.TypeSymlink, Name: "m", Linkname: "../outside"}, file("m/escaped", "x", 0o644)},
		"a write over a link":            {{Typeflag: tar.TypeSymlink, Name: "n", Linkname: "/tmp/conformance/outside/precious"}, file("n", "overwritten", 0o644)},
		"a hard link out":                {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/precious"}, file("h", "overwritten", 0o644)},
	} {
		// Refusing it and unpacking it below the directory are both right.
		err := c.copyIn(target, "/tmp/conformance/in", entries...)
		c.note("%s: %v", name, err)
		out, err := c.copyOut(target, "/tmp/conformance/outside")
		c.need(err, "copy out")
		_, escaped := out["outside/escaped"]
		c.failIf(escaped, "%s: it landed outside of the directory", name)
		c.failIf(out["outside/precious"].content != "as it was", "%s: a file outside of the directory is now %q", name, out["outside/precious"].content)
	}
}

func filesMissing(c *check) {
	_, target := c.ready(c.creation())
	_, err := c.copyOut(target, "/tmp/conformance-not-there")
	c.is(err, "copying out what is not there", sdk.ErrNotFound, sdk.ErrInvalid)
}

func logRules() []Rule {
	logs := []sdk.Feature{sdk.FeatureLogs}
	return []Rule{
		{ID: "logs/main", Title: "the output of the main process is kept, and its tail can be asked for", Features: logs, commands: []Command{CommandLines}, try: logsMain},
		{ID: "logs/follow", Title: "following goes on while the sandbox lives, and ends with it", Features: logs, commands: []Command{CommandTicks}, try: logsFollow},
		{ID: "logs/source", Title: "a log that is not kept is refused, and no other is given for it", Features: logs, try: logsSource},
	}
}

func (c *check) logs(opts sdk.LogsOptions) string {
	var out limited
	opts.Output = &out
	_, err := ability[sdk.Logger](c, c.kit.b).Logs(c.ctx, opts)
	c.failIf(err != nil, "logs: %v", err)
	return out.String()
}

func logsSource(c *check) {
	_, target := c.ready(c.creation())
	sources := []sdk.LogSource{"conformance"}
	if !c.claims(sdk.FeatureNetworkLog) {
		sources = append(sources, sdk.LogNetwork)
	}
	for _, source := range sources {
		_, err := ability[sdk.Logger](c, c.kit.b).Logs(c.ctx, sdk.LogsOptions{Target: target, Source: source, Output: &limited{}})
		c.is(err, fmt.Sprintf("asking for the log %q", source), sdk.ErrUnsupported)
	}
}

func logsMain(c *check) {
	_, target := c.ready(c.creation(func(p *sdk.Profile) { p.Command = c.commands().Lines(5) }))
	const want = "line-1\nline-2\nline-3\nline-4\nline-5\n"
	got := ""
	c.failIf(!c.soon(func() bool { got = c.logs(sdk.LogsOptions{Target: target}); return got == want }), "the log is %q", got)
	got = c.logs(sdk.LogsOptions{Target: target, Tail: 2})
	c.failIf(got != "line-4\nline-5\n", "its last two lines are said to be %q", got)
	got = c.logs(sdk.LogsOptions{Target: target, Tail: 100})
	c.failIf(got != want, "its last hundred lines are said to be %q", got)
}

func logsFollow(c *check) {
	_, target := c.ready(c.creation(func(p *sdk.Profile) { p.Command = c.commands().Ticks() }))
	follow := func(ctx context.Context) (*limited, chan error) {
		out, done := &limited{}, make(chan error, 1)
		logger := ability[sdk.Logger](c, c.kit.a)
		go func() {
			_, err := logger.Logs(ctx, sdk.LogsOptions{Target: target, Follow: true, Output: out})
			done <- err
		}()
		return out, done
	}
	ended := func(done chan error, with string) {
		select {
		case err := <-done:
			c.note("following ended with %s: %v", with, err)
		case <-time.After(c.kit.suite.Timing.Grace):
			c.fail("following goes on %s after %s", c.kit.suite.Timing.Grace, with)
		}
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	out, done := follow(ctx)
	c.failIf(!c.soon(func() bool { return len(out.String()) > 0 }), "nothing is logged")
	before := len(out.String())
	c.failIf(!c.soon(func() bool { return len(out.String()) > before }), "what is logged later does not come")
	select {
	case err := <-done:
		c.fail("following ended while the sandbox lives: %v", err)
	default:
	}
	cancel()
	ended(done, "its context")
	_, done = follow(c.ctx)
	c.sleep(200 * time.Millisecond)
	_, err := c.kit.b.Destroy(c.ctx, sdk.DestroyOptions{Target: target})
	c.need(err, "destroy")
	ended(done, "the sandbox")
}

func pauseRules() []Rule {
	pause := []sdk.Feature{sdk.FeaturePause}
	return []Rule{
		{ID: "pause/resume", Title: "a paused sandbox says so, keeps its lease, and goes on after resume", Features: pause, try: pauseResume},
		{ID: "pause/exec", Title: "a command on a paused sandbox is refused, or waits", Features: []sdk.Feature{sdk.FeaturePause, sdk.FeatureExec}, try: pauseExec},
		{ID: "pause/deadline", Title: "the deadline holds while paused", Features: []sdk.Feature{sdk.FeaturePause, sdk.FeatureDeadline}, try: pauseDeadline},
		{ID: "pause/extend", Title: "a paused sandbox can be extended", Features: []sdk.Feature{sdk.FeaturePause, sdk.FeatureExtend}, try: pauseExtend},
	}
}

func (c *check) pause() (sdk.Sandbox, sdk.Target) {
	_, target := c.ready(c.creation())
	paused, err := ability[sdk.Pauser](c, c.kit.a).Pause(c.ctx, sdk.PauseOptions{Target: target})
	c.failIf(err != nil, "pause: %v", err)
	return paused.Sandbox, target
}

func pauseResume(c *check) {
	s, target := c.pause()
	seen := c.get(c.kit.b, target)
	c.failIf(s.Status != sdk.StatusPaused || seen.Status != sdk.StatusPaused, "Pause says %s, another instance %s", s.Status, seen.Status)
	resumed, err := ability[sdk.Pauser](c, c.kit.b).Resume(c.ctx, sdk.ResumeOptions{Target: target})
	c.failIf(err != nil, "resume: %v", err)
	after := c.awaitReady(c.kit.a, resumed.Sandbox, target)
	c.failIf(after.Lease != s.Lease, "the lease went from %+v to %+v", s.Lease, after.Lease)
	if c.claims(sdk.FeatureExec) {
		c.exec(target, c.commands().Exit(0))
	}
}

func pauseExec(c *check) {
	_, target := c.pause()
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
	defer cancel()
	_, err := ability[sdk.Execer](c, c.kit.a).Exec(ctx, sdk.ExecOptions{Target: target, Command: c.commands().Exit(0)})
	c.is(err, "a command on a paused sandbox", sdk.ErrConflict, context.DeadlineExceeded)
}

func pauseDeadline(c *check) {
	s, target := c.shortLived(c.standard, func(_ sdk.Sandbox, target sdk.Target) error {
		_, err := ability[sdk.Pauser](c, c.kit.a).Pause(c.ctx, sdk.PauseOptions{Target: target})
		return err
	})
	c.waitFor(s.Lease.ExpiresAt)
	c.failIf(!c.soon(func() bool { return c.over(target) }), "%s after its deadline it is %s", c.kit.suite.Timing.Grace, c.statusOf(c.kit.b, target))
	_, err := ability[sdk.Pauser](c, c.kit.a).Resume(c.ctx, sdk.ResumeOptions{Target: target})
	c.failIf(err == nil, "it was resumed after its deadline")
}

func pauseExtend(c *check) {
	s, target := c.pause()
	granted, err := c.kit.a.Extend(c.ctx, c.extension(target, s.Lease, s.Lease.ExpiresAt.Add(time.Hour)))
	c.failIf(err != nil, "extend: %v", err)
	seen := c.get(c.kit.b, target)
	c.failIf(!seen.Lease.ExpiresAt.Equal(granted.Lease.ExpiresAt) || seen.Status != sdk.StatusPaused, "it is %s until %s", seen.Status, seen.Lease.ExpiresAt)
}
