// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// TestFiftyAtOnce is a rule, not a measurement: none may fail.
func TestFiftyAtOnce(t *testing.T) {
	e := backend(t)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			opts := options(sdk.Profile{Name: "shell"})
			if _, err := e.Create(t.Context(), opts); err != nil {
				t.Errorf("create: %v", err)
				return
			}
			if _, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(opts.ID), Command: []string{"true"}}); err != nil {
				t.Errorf("exec: %v", err)
			}
			if _, err := e.Destroy(context.Background(), sdk.DestroyOptions{Target: target(opts.ID)}); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	group.Wait()
}

// BenchmarkRatios prints what the backend costs over the plain runtime:
//
//	go test -run - -bench Ratios -benchtime 1x ./internal/extension
//
// Both run interleaved in one session, over the host's root.
func BenchmarkRatios(b *testing.B) {
	const rounds = 15
	dir := b.TempDir()
	e := extension.New(extension.Options{Program: program})
	if _, err := e.Configure(b.Context(), sdk.ConfigureOptions{Fleet: fleet, Config: fmt.Appendf(nil, "{%q: %q}", "state_dir", filepath.Join(dir, "state"))}); err != nil {
		b.Fatal(err)
	}
	plain := newPlain(b, dir)
	// The plain runtime leaves a mount behind when root runs it.
	b.Cleanup(func() { _ = syscall.Unmount(filepath.Join(dir, "r", "null-netns"), syscall.MNT_DETACH) })
	times := map[string][]time.Duration{}
	measure := func(name string, f func()) {
		begun := time.Now()
		f()
		times[name] = append(times[name], time.Since(begun))
	}
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	for i := range rounds {
		id := fmt.Sprintf("plain-%03d", i)
		measure("plain create to first exec", func() { plain.run(id); plain.exec(id) })
		measure("plain exec", func() { plain.exec(id) })
		if i == 0 {
			plain.runsc("checkpoint", "-leave-running", "-image-path="+filepath.Join(dir, "image"), id)
		}
		plain.delete(id)
		measure("plain restore", func() { plain.restore(id + "-r") })
		plain.delete(id + "-r")

		opts := options(sdk.Profile{Name: "shell"})
		execTrue := func(id string) {
			_, err := e.Exec(b.Context(), sdk.ExecOptions{Target: target(id), Command: []string{"true"}})
			check(err)
		}
		measure("create to first exec", func() {
			_, err := e.Create(b.Context(), opts)
			check(err)
			execTrue(opts.ID)
		})
		measure("exec", func() { execTrue(opts.ID) })
		snapshotID := newID("snp-")
		measure("snapshot", func() {
			_, err := e.Snapshot(b.Context(), sdk.SnapshotOptions{Target: target(opts.ID), SnapshotID: snapshotID, Kind: sdk.SnapshotMemory, ExpiresAt: time.Now().Add(time.Hour), Identity: sdk.Identity{Fleet: fleet}})
			check(err)
		})
		fork := options(sdk.Profile{Name: "shell"})
		measure("restore", func() {
			_, err := e.Restore(b.Context(), sdk.RestoreOptions{SnapshotID: snapshotID, Create: fork})
			check(err)
		})
		for _, id := range []string{opts.ID, fork.ID} {
			measure("destroy", func() {
				_, err := e.Destroy(b.Context(), sdk.DestroyOptions{Target: target(id)})
				check(err)
			})
		}
	}
	median := func(name string) float64 {
		slices.Sort(times[name])
		return float64(times[name][len(times[name])/2]) / float64(time.Millisecond)
	}
	for _, name := range []string{"create to first exec", "exec", "restore"} {
		b.Logf("%-22s %6.1f ms, plain %6.1f ms, ratio %.2f", name, median(name), median("plain "+name), median(name)/median("plain "+name))
	}
	b.Logf("snapshot %.1f ms, destroy %.1f ms", median("snapshot"), median("destroy"))
}

// plain drives the runtime without us.
type plain struct {
	b   *testing.B
	dir string
}

func newPlain(b *testing.B, dir string) *plain {
	p := &plain{b, dir}
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "proc", "tmp", "bundle", "overlay"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	spec := `{"ociVersion":"1.1.0","root":{"path":"/"},"hostname":"p","process":{"user":{"uid":0,"gid":0},"args":["/bin/sleep","10000"],"env":["PATH=/bin:/usr/bin"],"cwd":"/"},
"mounts":[{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/tmp","type":"tmpfs","source":"tmpfs"}],"linux":{"namespaces":[{"type":"pid"},{"type":"ipc"},{"type":"uts"},{"type":"mount"}]}}`
	if err := os.WriteFile(filepath.Join(root, "bundle", "config.json"), []byte(spec), 0o600); err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *plain) runsc(args ...string) {
	p.b.Helper()
	global := []string{"--root=" + p.dir + "/r", "--network=none", "--ignore-cgroups", "--overlay2=root:dir=" + p.dir + "/root/overlay"}
	cmd := exec.Command(program, append(global, args...)...)
	cmd.Args[0] = "runsc-cli"
	if err := cmd.Run(); err != nil {
		p.b.Fatalf("runsc %v: %v", args, err)
	}
}

func (p *plain) run(id string)    { p.runsc("run", "-detach", "-bundle="+p.dir+"/root/bundle", id) }
func (p *plain) exec(id string)   { p.runsc("exec", id, "true") }
func (p *plain) delete(id string) { p.runsc("delete", "-force", id) }
func (p *plain) restore(id string) {
	p.runsc("restore", "-detach", "-bundle="+p.dir+"/root/bundle", "-image-path="+p.dir+"/image", id)
}
