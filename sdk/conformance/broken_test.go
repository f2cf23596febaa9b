// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

// broken is an extension with one fault: a method that is set is used instead.
type broken struct {
	careful
	configure      func(ctx context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error)
	create         func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error)
	get            func(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error)
	list           func(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error)
	extend         func(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error)
	expire         func(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error)
	claim          func(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error)
	destroy        func(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error)
	exec           func(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error)
	logs           func(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error)
	pause          func(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error)
	deleteSnapshot func(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error)
	restore        func(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error)
	export         func(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error)
	take           func(ctx context.Context, opts sdk.ImportSnapshotOptions) (sdk.ImportSnapshotResult, error)
}

// use calls the broken method where there is one.
func use[O, R any](ctx context.Context, opts O, broken, honest func(context.Context, O) (R, error)) (R, error) {
	if broken != nil {
		return broken(ctx, opts)
	}
	return honest(ctx, opts)
}

func (b broken) Configure(ctx context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	return use(ctx, opts, b.configure, b.careful.Configure)
}

func (b broken) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	return use(ctx, opts, b.create, b.careful.Create)
}

func (b broken) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	return use(ctx, opts, b.get, b.careful.Get)
}

func (b broken) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	return use(ctx, opts, b.list, b.careful.List)
}

func (b broken) Extend(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	return use(ctx, opts, b.extend, b.careful.Extend)
}

func (b broken) Expire(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	return use(ctx, opts, b.expire, b.careful.Expire)
}

func (b broken) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	return use(ctx, opts, b.claim, b.careful.Claim)
}

func (b broken) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	return use(ctx, opts, b.destroy, b.careful.Destroy)
}

func (b broken) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	return use(ctx, opts, b.exec, b.careful.Exec)
}

func (b broken) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	return use(ctx, opts, b.logs, b.careful.Logs)
}

func (b broken) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	return use(ctx, opts, b.pause, b.careful.Pause)
}

func (b broken) DeleteSnapshot(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	return use(ctx, opts, b.deleteSnapshot, b.careful.DeleteSnapshot)
}

func (b broken) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	return use(ctx, opts, b.restore, b.careful.Restore)
}

func (b broken) ExportSnapshot(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
	return use(ctx, opts, b.export, b.careful.ExportSnapshot)
}

func (b broken) ImportSnapshot(ctx context.Context, opts sdk.ImportSnapshotOptions) (sdk.ImportSnapshotResult, error) {
	return use(ctx, opts, b.take, b.careful.ImportSnapshot)
}

// portableless is an extension whose snapshots stay where they are.
type portableless struct {
	sdk.Extension
	sdk.Execer
	sdk.Copier
	sdk.Logger
	sdk.Pauser
	sdk.Snapshotter
	sdk.Inspector
}

// rewritten exports a snapshot as an archive that differs from an honest one.
func (b *broken) rewritten(ctx context.Context, opts sdk.ExportSnapshotOptions, change func(a *portable.Archive)) (result sdk.ExportSnapshotResult, err error) {
	var honest bytes.Buffer
	out := opts.Archive
	opts.Archive = &honest
	if result, err = b.careful.ExportSnapshot(ctx, opts); err != nil {
		return result, err
	}
	a, err := portable.Open(ctx, &honest, portable.OpenOptions{})
	if err != nil {
		return result, err
	}
	defer a.Close()
	change(a)
	w, err := portable.NewWriter("")
	if err != nil {
		return result, err
	}
	defer w.Close()
	for i := range a.Layers {
		layer, err := a.OpenLayer(i)
		if err == nil {
			err = w.Layer(func(to io.Writer) error { _, err := io.Copy(to, layer); return err })
			layer.Close()
		}
		if err != nil {
			return result, err
		}
	}
	result.Losses = a.Document.Losses
	result.Bytes, result.Digest, err = w.Write(out, a.Config, a.Document)
	return result, err
}

// execless is an extension that can't run commands.
type execless struct {
	sdk.Extension
	sdk.Copier
	sdk.Logger
	sdk.Pauser
	sdk.PortableSnapshotter
	sdk.Inspector
}

// inspectless hides Inspect, and the document goes on to claim it.
type inspectless struct {
	sdk.Extension
	sdk.Execer
	sdk.Copier
	sdk.Logger
	sdk.Pauser
	sdk.PortableSnapshotter
}

func otherFleet(fleet string) string {
	if own, ok := strings.CutSuffix(fleet, "-other"); ok {
		return own
	}
	return fleet + "-other"
}

// cut drops what is too much.
type cut struct {
	w    io.Writer
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	kept := p[:min(len(p), c.left)]
	c.left -= len(kept)
	if _, err := c.w.Write(kept); err != nil {
		return 0, err
	}
	return len(p), nil
}

// The kit can fail: each broken extension is caught, by the rules that are
// about what is broken and by no other. The one that is not broken passes.
func TestBrokenExtensionsAreCaught(t *testing.T) {
	reports := make([]conformance.Report, len(variants))
	errs := make([]error, len(variants))
	// Most of a run is waiting for deadlines; a few at a time keep the waits
	// short compared with the lives that are waited for.
	slots := make(chan struct{}, 8)
	done := make(chan int)
	for i, v := range variants {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots; done <- i }()
			server := saasstub.NewServer(saasstub.ServerOptions{})
			reports[i], errs[i] = conformance.Run(t.Context(), suite(server, func(e careful) sdk.Extension {
				b := &broken{careful: e}
				if v.wrap != nil {
					return v.wrap(*b)
				}
				v.breaks(b)
				return *b
			}))
		}()
	}
	for range variants {
		<-done
	}
	for i, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			report := reports[i]
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			if got := report.IDs(conformance.Failed); !slices.Equal(got, v.fails) {
				t.Errorf("failed are %q, and it breaks %q\n%s", got, v.fails, text(t, report))
			}
			if got := report.IDs(conformance.Errored); (len(got) > 0) != v.errors {
				t.Errorf("errors are %q\n%s", got, text(t, report))
			}
			if (len(report.Leftovers) > 0) != v.leaves {
				t.Errorf("left behind: %q", report.Leftovers)
			}
			if report.Failed() != (len(v.fails) > 0) {
				t.Errorf("Failed is %v", report.Failed())
			}
			onlyTheDocumentExcuses(t, report)
		})
	}
}

// onlyTheDocumentExcuses: a rule is not applicable for no other reason than
// that the document says unsupported, and what the suite leaves out says why.
func onlyTheDocumentExcuses(t *testing.T, report conformance.Report) {
	t.Helper()
	for _, row := range report.Rows {
		unsupported := slices.ContainsFunc(row.Claims, func(c conformance.Claim) bool { return c.Class == sdk.ClassUnsupported })
		if row.Outcome == conformance.NotApplicable && (!unsupported || row.Reason == "") {
			t.Errorf("%s is not applicable: %q", row.ID, row.Reason)
		}
		if row.Outcome == conformance.SuiteExcluded && row.Reason == "" {
			t.Errorf("%s is left out without a reason", row.ID)
		}
	}
	if len(report.Rows) != len(conformance.Rules()) {
		t.Errorf("%d rows of %d rules", len(report.Rows), len(conformance.Rules()))
	}
}

func text(t *testing.T, report conformance.Report) string {
	t.Helper()
	var b strings.Builder
	if err := report.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
