// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/modal/modaltest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// What a verb costs in calls of the service. A change of these figures is a
// change of what a plan of a hundred sandboxes costs.
func TestCallsOfEachVerb(t *testing.T) {
	c := newCloud(t, modaltest.Options{})
	_, target := c.mustCreate(t, 0) // the token, the app and the image are known then
	for _, test := range []struct {
		verb string
		most int
		act  func() error
	}{
		// The create, and a look at it: the pages of both generations.
		{"create", 5, func() error { _, err := c.Create(t.Context(), c.creation(1)); return err }},
		{"get", 2, func() error { _, err := c.Get(t.Context(), sdk.GetOptions{Target: target}); return err }},
		{"list", 3, func() error { _, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet}); return err }},
		{"extend", 4, func() error {
			_, err := c.Extend(t.Context(), sdk.ExtendOptions{Target: target, Generation: 1, ExpiresAt: start.Add(2 * time.Hour)})
			return err
		}},
		// The looks before and after, the end, and the wait for it.
		{"destroy", 14, func() error { _, err := c.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); return err }},
	} {
		c.Forget()
		if err := test.act(); err != nil {
			t.Fatalf("%s: %v", test.verb, err)
		}
		if n := len(c.Requests()); n > test.most {
			t.Errorf("%s makes %d calls, and should make %d at most: %v", test.verb, n, test.most, c.Calls())
		}
	}
}

// A listing of a thousand costs a page for each ninety-nine, since pages of a
// hundred overlap by one, and one more that shows that there is nothing left;
// the generation that there is nothing of costs one. What is listed costs none.
func TestListOfAThousand(t *testing.T) {
	const n = 1000
	c := newCloud(t, modaltest.Options{Concurrent: 2 * n})
	c.mustCreate(t, 0)
	var creates sync.WaitGroup
	errs := make([]error, n)
	slots := make(chan struct{}, 8)
	for i := 1; i < n; i++ {
		creates.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, errs[i] = c.Create(t.Context(), c.creation(i))
		})
	}
	creates.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	c.Forget()
	list, err := c.List(t.Context(), sdk.ListOptions{Fleet: fleet})
	if err != nil || list.Incomplete != "" || len(list.Sandboxes) != n {
		t.Fatalf("%d of %d listed, incomplete: %q, %v", len(list.Sandboxes), n, list.Incomplete, err)
	}
	calls := c.Calls()
	if calls[modaltest.CallList] > (n+98)/99+1 || calls[modaltest.CallListV1] != 1 || len(c.Requests()) != calls[modaltest.CallList]+1 {
		t.Errorf("a listing of %d makes these calls: %v", n, calls)
	}
	t.Logf("a listing of %d makes these calls: %v", n, calls)
}

// What the extension adds to the calls that it makes of the service: next to
// nothing beside them, and in full less than 5 ms of a hundred calls the slowest.
func TestOverhead(t *testing.T) {
	server := serve(t, modaltest.Options{})
	c := &cloud{Server: server}
	e := c.machine(t, t.TempDir(), extension.Options{})
	made, err := e.Create(t.Context(), creationAt(time.Now(), 1))
	if err != nil {
		t.Fatal(err)
	}
	target := sdk.Target{ID: sandboxID(1), Ref: made.Sandbox.Ref, Fleet: fleet}
	wire, end := bareClient(t, server)
	defer end()
	const calls = 300
	ours, bare := make([]time.Duration, calls), make([]time.Duration, calls)
	for i := range calls {
		begun := time.Now()
		if _, err := e.Get(t.Context(), sdk.GetOptions{Target: target}); err != nil {
			t.Fatal(err)
		}
		ours[i] = time.Since(begun)
		begun = time.Now()
		if err := bareGet(t.Context(), wire, target.Ref); err != nil {
			t.Fatal(err)
		}
		bare[i] = time.Since(begun)
	}
	slices.Sort(ours)
	slices.Sort(bare)
	middle, slowest := ours[calls/2]-bare[calls/2], ours[calls*99/100]-bare[calls*99/100]
	t.Logf("get takes %s beyond its calls at the median, and %s at the 99th percentile", middle, slowest)
	if middle > 5*time.Millisecond || full() && slowest > 5*time.Millisecond {
		t.Errorf("get takes %s beyond its calls at the median, and %s at the 99th percentile", middle, slowest)
	}
}

// bareClient is a connection of gRPC with the headers that the service wants, and
// nothing of the vendor's client or of the extension.
func bareClient(t *testing.T, server *modaltest.Server) (wire pb.ModalClientClient, end func()) {
	t.Helper()
	headers := []string{"x-modal-token-id", testTokenID, "x-modal-token-secret", testTokenSecret}
	conn, err := grpc.NewClient(strings.TrimPrefix(server.URL(), "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(metadata.AppendToOutgoingContext(ctx, headers...), method, req, reply, cc, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	wire = pb.NewModalClientClient(conn)
	token, err := wire.AuthTokenGet(t.Context(), &pb.AuthTokenGetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	headers = append(headers, "x-modal-auth-token", token.GetToken())
	return wire, func() { _ = conn.Close() }
}

// bareGet makes the calls of a Get, and drops their answers.
func bareGet(ctx context.Context, wire pb.ModalClientClient, ref string) error {
	var tagErr, endErr error
	var calls sync.WaitGroup
	calls.Go(func() {
		_, tagErr = wire.SandboxTagsGetV2(ctx, pb.SandboxTagsGetRequest_builder{SandboxId: ref}.Build())
	})
	calls.Go(func() { _, endErr = wire.SandboxWaitV2(ctx, pb.SandboxWaitRequest_builder{SandboxId: ref}.Build()) })
	calls.Wait()
	return errors.Join(tagErr, endErr)
}
