// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

// counting counts the reads that the framework has to answer.
type counting struct {
	framework
	reads int
}

func (c *counting) ReadResource(ctx context.Context, req *tfprotov6.ReadResourceRequest) (*tfprotov6.ReadResourceResponse, error) {
	c.reads++
	return c.framework.ReadResource(ctx, req)
}

// reads returns what the short way and the framework alone answer to a read,
// and whether the short way had to ask the framework.
func (r *run) reads(s *state) (short, long *tfprotov6.ReadResourceResponse, asked bool) {
	r.t.Helper()
	through, ok := r.server.(*refresher)
	if !ok {
		r.t.Fatalf("the server is a %T", r.server)
	}
	counted := &counting{framework: through.framework}
	ask := func(server tfprotov6.ProviderServer) *tfprotov6.ReadResourceResponse {
		resp, err := server.ReadResource(r.ctx, &tfprotov6.ReadResourceRequest{
			TypeName: s.kind, CurrentState: r.dynamic(r.kind(s.kind), s.value), Private: s.private,
		})
		r.must(err)
		return resp
	}
	short = ask(&refresher{framework: counted, provider: through.provider})
	return short, ask(through.framework), counted.reads > 0
}

// The short way of a refresh never answers what the framework would not, and
// is taken when nothing has changed.
func TestRefreshOfWhatHasNotChanged(t *testing.T) {
	for name, c := range map[string]struct {
		between func(w *world, s *state)
		asked   bool
	}{
		"nothing":        {func(*world, *state) {}, false},
		"time":           {func(w *world, _ *state) { w.clock.Advance(10 * time.Minute) }, false},
		"another ledger": {func(w *world, _ *state) { w.dir = w.t.TempDir() }, false},
		"extended": {func(w *world, s *state) {
			if _, err := w.elsewhere().Extend(w.t.Context(), s.text("id"), lifecycle.ExtendOptions{TTL: 3 * time.Hour}); err != nil {
				w.t.Fatal(err)
			}
		}, true},
		"paused": {func(w *world, s *state) {
			if _, err := w.elsewhere().Pause(w.t.Context(), s.text("id"), lifecycle.PauseOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}, true},
		"expired": {func(w *world, _ *state) { w.clock.Advance(3 * time.Hour) }, true},
		"lost":    {func(w *world, s *state) { w.kill(s) }, true},
		"destroyed": {func(w *world, s *state) {
			if _, err := w.elsewhere().Destroy(w.t.Context(), s.text("id"), lifecycle.DestroyOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}, true},
		"not known yet": {func(w *world, _ *state) { w.block = object{"fleet": unknown{}} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.terraform().made(tfSandbox, sandboxOf(object{
				"ttl": "2h", "env": object{"A": "b"}, "labels": object{"suite": "x"}, "timeouts": object{"create": "5m"},
			}), nil)
			c.between(w, s)
			tf := w.terraform()
			short, long, asked := tf.reads(s)
			kind := tf.kind(s.kind)
			if diff := differences(tf.undynamic(kind, short.NewState), tf.undynamic(kind, long.NewState)); len(diff) > 0 {
				t.Errorf("the answers differ: %v", diff)
			}
			if show(short.Diagnostics) != show(long.Diagnostics) || string(short.Private) != string(long.Private) {
				t.Errorf("%s\n%s", show(short.Diagnostics), show(long.Diagnostics))
			}
			if asked != c.asked {
				t.Errorf("the framework was asked: %t, want %t", asked, c.asked)
			}
		})
	}
}

// BenchmarkRefresh reads one unchanged sandbox, as it is served and by the
// framework alone.
func BenchmarkRefresh(b *testing.B) {
	for name, way := range map[string]func(*refresher) tfprotov6.ProviderServer{
		"served":    func(r *refresher) tfprotov6.ProviderServer { return r },
		"framework": func(r *refresher) tfprotov6.ProviderServer { return r.framework },
	} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			s := w.terraform().made(tfSandbox, sandboxOf(nil), nil)
			tf := w.terraform()
			through, _ := tf.server.(*refresher)
			server, current := way(through), tf.dynamic(tf.kind(s.kind), s.value)
			for b.Loop() {
				resp, err := server.ReadResource(b.Context(), &tfprotov6.ReadResourceRequest{TypeName: s.kind, CurrentState: current})
				if err != nil || len(resp.Diagnostics) > 0 {
					b.Fatal(err, show(resp.Diagnostics))
				}
			}
		})
	}
}
