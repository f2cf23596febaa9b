// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension_test

import (
	"errors"
	"sync"
	"testing"
	"time"

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
