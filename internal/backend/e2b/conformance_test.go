// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/e2b/e2btest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/conformance/conformancetest"
)

// The backend conforms to the rules of every backend, also while the service
// goes wrong.
func TestConformance(t *testing.T) {
	server, url := serve(t, e2btest.Options{Concurrent: 1000})
	config, err := json.Marshal(map[string]string{"api_url": url, "sandbox_url": url, "api_key": testKey, "state_dir": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	lie := func(faults ...e2btest.Fault) func() func() {
		return func() func() { server.Inject(faults...); return server.Heal }
	}
	var broken []e2btest.Fault
	for _, call := range e2btest.Calls() {
		broken = append(broken, e2btest.Fault{Call: call, Lie: e2btest.Refuse, Status: 503})
	}
	const files = "the server's snapshots carry files and no processes; the vendor's carry both"
	conformancetest.Test(t, conformance.Suite{
		New: func(context.Context) (sdk.Extension, func(), error) {
			return e2b.New(e2b.Options{Getenv: func(string) string { return "" }, Settle: 2 * time.Second}), nil, nil
		},
		Config: config,
		Commands: conformance.Commands{
			Lacks: map[conformance.Command]string{conformance.CommandCounter: files},
		},
		Faults: map[conformance.Fault]func() func(){
			conformance.FaultLostCreate:       lie(e2btest.Fault{Call: e2btest.CallCreate, Lie: e2btest.LoseAnswer, On: 1}),
			conformance.FaultLostExtend:       lie(e2btest.Fault{Call: e2btest.CallTimeout, Lie: e2btest.LoseAnswer, On: 1}),
			conformance.FaultLostDestroy:      lie(e2btest.Fault{Call: e2btest.CallDelete, Lie: e2btest.LoseAnswer, On: 1}),
			conformance.FaultPretendedDestroy: lie(e2btest.Fault{Call: e2btest.CallDelete, Lie: e2btest.Pretend}),
			conformance.FaultFalseNotFound:    lie(e2btest.Fault{Call: e2btest.CallGet, Lie: e2btest.NotFound}),
			conformance.FaultLostPage:         lie(e2btest.Fault{Call: e2btest.CallList, Lie: e2btest.DropPage}),
			conformance.FaultRepeatedPage:     lie(e2btest.Fault{Call: e2btest.CallList, Lie: e2btest.RepeatPage}),
			conformance.FaultThrottled:        lie(e2btest.Fault{Call: e2btest.CallGet, Lie: e2btest.RateLimited, On: 1}),
			conformance.FaultUnreachable:      lie(broken...),
			conformance.FaultDiedEarly:        lie(e2btest.Fault{Call: e2btest.CallCreate, Lie: e2btest.DieEarly, On: 1}),
		},
		Page:   100,
		Timing: conformance.Timing{Short: 3 * time.Second, Grace: 15 * time.Second},
	}, nil)
}
