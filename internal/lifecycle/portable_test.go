// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// carrier is a backend whose snapshots travel. What was imported is all that
// it has of snapshots.
type carrier struct {
	*saasstub.Extension
	imported map[string]sdk.Snapshot
	lose     bool // the answer to an import
	asked    string
}

func (c *carrier) Describe(ctx context.Context, opts sdk.DescribeOptions) (sdk.DescribeResult, error) {
	described, err := c.Extension.Describe(ctx, opts)
	if err == nil {
		described.Capabilities[sdk.FeaturePortableSnapshot] = sdk.Guarantee{Class: sdk.ClassEnforced}
	}
	return described, err
}

func (c *carrier) ExportSnapshot(_ context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
	n, err := io.WriteString(opts.Archive, "archive of "+opts.SnapshotID)
	return sdk.ExportSnapshotResult{Bytes: int64(n), Digest: "sha256:1"}, err
}

func (c *carrier) ImportSnapshot(_ context.Context, opts sdk.ImportSnapshotOptions) (sdk.ImportSnapshotResult, error) {
	c.asked = opts.SnapshotID
	content, err := io.ReadAll(opts.Archive)
	if err != nil || !strings.HasPrefix(string(content), "archive of ") {
		return sdk.ImportSnapshotResult{}, sdk.Invalid("archive", "it is none")
	}
	s := sdk.Snapshot{ID: opts.SnapshotID, Ref: "ref", Kind: sdk.SnapshotFilesystem, SandboxID: "sbx-elsewhere", Identity: opts.Identity, Profile: profile(), ExpiresAt: opts.ExpiresAt}
	c.imported[s.ID] = s
	if c.lose {
		return sdk.ImportSnapshotResult{}, sdk.Errorf(sdk.ErrUnreachable, "the connection broke")
	}
	return sdk.ImportSnapshotResult{Snapshot: s, Losses: []sdk.Loss{{Kind: sdk.LossMemory, Detail: "processes"}}}, nil
}

func (c *carrier) GetSnapshot(_ context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	s, ok := c.imported[opts.SnapshotID]
	if !ok {
		return sdk.GetSnapshotResult{}, sdk.Errorf(sdk.ErrNotFound, "no snapshot")
	}
	return sdk.GetSnapshotResult{Snapshot: s}, nil
}

func (c *carrier) DeleteSnapshot(_ context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	_, existed := c.imported[opts.SnapshotID]
	delete(c.imported, opts.SnapshotID)
	return sdk.DeleteSnapshotResult{Existed: existed}, nil
}

func newCarrier(t *testing.T) (house, *carrier) {
	t.Helper()
	h := newHouse(t)
	c := &carrier{Extension: h.backends.(backends)["cloud"].(*saasstub.Extension), imported: map[string]sdk.Snapshot{}}
	h.Manager = New(h.ledger, backends{"cloud": c}, h.clock, Settings{Fleet: "ci", Attribution: sandbox.Attribution{Owner: "payments", Actor: "tester"}})
	return h, c
}

// An import is a snapshot like any other: intent first, a retention, and a log
// of its own. What was exported is told with an empty report, not with none.
func TestImportAndExport(t *testing.T) {
	h, c := newCarrier(t)
	made, err := h.ImportSnapshot(t.Context(), ImportSnapshotOptions{Archive: strings.NewReader("archive of snp-x"), TTL: time.Hour, Labels: map[string]string{"suite": "one"}})
	if err != nil {
		t.Fatal(err)
	}
	if made.SandboxID != "sbx-elsewhere" || made.Owner != "payments" || made.Labels["suite"] != "one" || !made.ExpiresAt.Equal(start.Add(time.Hour)) || len(made.Losses) != 1 {
		t.Errorf("%+v", made)
	}
	if got := h.types(t, made.ID); !slices.Equal(got, []ledger.Type{ledger.Intended, ledger.Snapshotted}) {
		t.Errorf("%v", got)
	}
	if _, known := c.imported[made.ID]; !known || len(h.open(t)) != 1 {
		t.Error("it is not where it belongs")
	}
	var archive bytes.Buffer
	exported, err := h.ExportSnapshot(t.Context(), made.ID, ExportSnapshotOptions{Archive: &archive})
	if err != nil || exported.Losses == nil || exported.Bytes != int64(archive.Len()) || exported.Backend != "cloud" {
		t.Errorf("%+v, %v", exported, err)
	}
}

// An answer that was lost is searched for, and what is there is kept.
func TestALostAnswerOfAnImport(t *testing.T) {
	h, c := newCarrier(t)
	c.lose = true
	made, err := h.ImportSnapshot(t.Context(), ImportSnapshotOptions{Archive: strings.NewReader("archive of snp-x")})
	if err != nil || len(c.imported) != 1 || made.ID != c.asked {
		t.Errorf("%+v, %v", made, err)
	}
}

// What is refused leaves no snapshot and a closed log; a caller who gave up
// leaves nothing either.
func TestARefusedImportLeavesNothing(t *testing.T) {
	h, c := newCarrier(t)
	_, err := h.ImportSnapshot(t.Context(), ImportSnapshotOptions{Archive: strings.NewReader("noise")})
	if !errors.Is(err, sdk.ErrInvalid) || len(c.imported) != 0 || len(h.open(t)) != 0 {
		t.Errorf("%v, %d snapshots, %d open logs", err, len(c.imported), len(h.open(t)))
	}
	if got := h.types(t, c.asked); !slices.Equal(got, []ledger.Type{ledger.Intended, ledger.SnapshotFailed}) {
		t.Errorf("%v", got)
	}
	c.lose = true
	ctx, cancel := context.WithCancel(t.Context())
	_, err = h.ImportSnapshot(ctx, ImportSnapshotOptions{Archive: cancelling{strings.NewReader("archive of snp-x"), cancel}})
	if err == nil || len(c.imported) != 0 {
		t.Errorf("%v, %d snapshots", err, len(c.imported))
	}
	if _, err := h.ImportSnapshot(t.Context(), ImportSnapshotOptions{Labels: map[string]string{"not a key": ""}}); !errors.Is(err, sdk.ErrInvalid) {
		t.Error(err)
	}
}

// cancelling ends its caller when it is read.
type cancelling struct {
	io.Reader
	cancel func()
}

func (c cancelling) Read(p []byte) (int, error) {
	c.cancel()
	return c.Reader.Read(p)
}

// homebound is a backend that says of its snapshots that they do not travel.
type homebound struct{ *saasstub.Extension }

func (h homebound) Describe(ctx context.Context, opts sdk.DescribeOptions) (sdk.DescribeResult, error) {
	described, err := h.Extension.Describe(ctx, opts)
	if err == nil {
		described.Capabilities[sdk.FeaturePortableSnapshot] = sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: "they stay"}
	}
	return described, err
}

// A backend whose snapshots can't travel says so before anything is written.
func TestSnapshotsThatStayWhereTheyAre(t *testing.T) {
	h := newHouse(t)
	stub := h.backends.(backends)["cloud"].(*saasstub.Extension)
	h.Manager = New(h.ledger, backends{"cloud": homebound{stub}}, h.clock, Settings{Fleet: "ci"})
	_, err := h.ImportSnapshot(t.Context(), ImportSnapshotOptions{Archive: strings.NewReader("archive of snp-x")})
	var refusal *sdk.Error
	if !errors.Is(err, sdk.ErrUnsupported) || !errors.As(err, &refusal) || refusal.Path != "backend" {
		t.Error(err)
	}
	if records, _, err := h.ledger.List(t.Context(), ledger.Filter{}); err != nil || len(records) != 0 {
		t.Errorf("%d logs, %v", len(records), err)
	}
}
