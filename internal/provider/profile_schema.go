// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func profileSchema(ctx context.Context) schema.Schema {
	s := schema.Schema{
		MarkdownDescription: "A profile: what a sandbox is made from, its limits, its network policy, its readiness check, how long it lives, and what it requires of a backend.\n\n" +
			"A profile is a value: its `document` travels to the sandboxes that use it, and is known at plan, so that they are checked on the first plan. " +
			"Its `id` is its content: a profile that changes is another profile. Creating it also publishes it into the library of this machine, where `sandboxer create --profile NAME` finds it; nothing in Terraform depends on that. " +
			"With `prepare = true` the backends in `backends` pull, build and unpack ahead of the first sandbox.",
		Attributes: profileArguments(),
	}
	s.Attributes["backends"] = schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "Backends that the profile is meant for: it is held against what each of them promises, at plan. Default: none; a sandbox is held against its own backend in any case."}
	s.Attributes["prepare"] = schema.BoolAttribute{Optional: true, Computed: true, Default: booldefault.StaticBool(false), MarkdownDescription: "Whether to pull, build and unpack on `backends` (without any: on the provider's default) when the profile is created, so that the first sandbox starts fast. Default: `false`."}
	s.Attributes["timeouts"] = timeoutsArgument(ctx, timeouts.Opts{
		Create: true, Update: true,
		CreateDescription: "Publishing it and, with `prepare`, pulling, building and unpacking on each backend. Default: `20m`.",
		UpdateDescription: "The same, for a changed profile. Default: `20m`.",
	})
	resourceFacts(profileFactTable, s.Attributes)
	return s
}

var profileFactTable = []fact{
	{"id", factText, "`NAME@REVISION`. Known at plan when the arguments are."},
	{"revision", factText, "Digest of the canonical form, `sha256:…`."},
	{"document", factText, "The profile as canonical JSON: what a sandbox takes as its `profile`."},
}

func profileArguments() map[string]schema.Attribute {
	texts := func(description string) schema.Attribute {
		return schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: description}
	}
	textMap := func(description string) schema.Attribute {
		return schema.MapAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: description}
	}
	object := func(description string, attributes map[string]schema.Attribute) schema.Attribute {
		return schema.SingleNestedAttribute{Optional: true, Attributes: attributes, MarkdownDescription: description}
	}
	needed := func(description string) schema.Attribute {
		return schema.StringAttribute{Required: true, MarkdownDescription: description}
	}
	port := func() map[string]schema.Attribute {
		return map[string]schema.Attribute{"port": schema.Int64Attribute{Required: true, MarkdownDescription: "Port inside the sandbox; it has to be named in `ports`."}}
	}
	http := port()
	http["path"] = textArgument("Path that is asked for. Default: `/`.")
	return map[string]schema.Attribute{
		"name":        needed("Name of the profile: 1 to 63 letters, digits, dots, dashes and underscores."),
		"description": textArgument("What the profile is for."),
		"image":       textArgument("Image to make it from: a reference, or the path (absolute, or with `./` or `../`) of an OCI layout, a `docker save` archive or a root filesystem tar, relative to the working directory. `local` takes paths only, and opens the image when a sandbox is made: a missing one passes the plan and fails the apply. Without any of `image`, `build`, `compose`, `machine` and `template`, the backend's own root is used where it has one."),
		"build": object("Image to build and make it from. Not on `local`.", map[string]schema.Attribute{
			"context":    needed("Directory that is built."),
			"dockerfile": textArgument("Name of the Dockerfile in the context. Default: `Dockerfile`."),
			"args":       textMap("Build arguments by name."),
			"target":     textArgument("Stage that is built. Default: the last."),
		}),
		"compose": object("Compose project to make it from. Not on `local`.", map[string]schema.Attribute{
			"files":    schema.ListAttribute{Required: true, ElementType: types.StringType, MarkdownDescription: "Compose files."},
			"profiles": texts("Compose profiles to enable."),
			"services": texts("Services to start. Default: all."),
		}),
		"machine": object("Virtual machine image to make it from. Not on `local`.", map[string]schema.Attribute{
			"image":  needed("Path of the machine image."),
			"format": textArgument("Format of the image. Default: detected."),
		}),
		"template": textArgument("Name of a template of the backend to make it from. Not on `local`."),
		"command":  texts("Main process: program and arguments. Without one, the sandbox idles. A sandbox goes on when its command ends; set `ready` to find out."),
		"workdir":  textArgument("Working directory, absolute."),
		"user":     textArgument("User to run as: a name, a uid, or `uid:gid`."),
		"env":      textMap("Environment variables by name. They are part of the document: secrets belong into the sandbox's `secrets_wo`."),
		"files": schema.MapNestedAttribute{Optional: true, MarkdownDescription: "Files that are placed before the first instruction, by absolute path.", NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"content": schema.StringAttribute{Required: true, MarkdownDescription: "Content of the file."},
			"mode":    textArgument("Mode in octal. Default: `0644`."),
		}}},
		"setup":   schema.ListAttribute{Optional: true, ElementType: types.ListType{ElemType: types.StringType}, MarkdownDescription: "Commands that run one after the other, after the start and before the readiness check. The first that fails fails the create."},
		"ports":   schema.MapAttribute{Optional: true, ElementType: types.Int64Type, MarkdownDescription: "TCP ports to publish, by name. Their addresses are the sandbox's `endpoints`."},
		"publish": textArgument("Where ports are published: `loopback` (default) or `host`.", stringvalidator.OneOf("loopback", "host")),
		"runtime": textArgument("Runtime of the backend to run it under. Default: the backend's. Not on `local`, which always uses gVisor."),
		"limits": object("Bounds. What is set must be kept by the backend, or the profile is refused at plan.", map[string]schema.Attribute{
			"cpus":   schema.Float64Attribute{Optional: true, MarkdownDescription: "Processors."},
			"memory": textArgument("Memory, as a number with a unit: `512MiB`, `2GB`. On `local` about 40 MB of it are the runtime's own, and going over it ends the whole sandbox, which is then `lost`."),
			"pids":   schema.Int64Attribute{Optional: true, MarkdownDescription: "Processes and threads."},
			"disk":   textArgument("Writable disk, as a number with a unit."),
			"wall":   textArgument("Upper bound on the life, whatever is extended, as a Go duration."),
		}),
		"network": object("Network policy, in force before the first instruction. Default: no network.", map[string]schema.Attribute{
			"egress": textArgument("`none` (default): no network at all; `deny`: nothing but `allow`; `open`.", stringvalidator.OneOf(sdk.EgressNone, sdk.EgressDeny, sdk.EgressOpen)),
			"allow":  texts("What `deny` lets through: `host:port`, `*.domain:port` for every name below it, `address:port`, `CIDR:port` or `[IPv6 CIDR]:port`; without a port, every port. See the guide on network policy."),
		}),
		"ready": object("The check that makes a sandbox ready, after create and after each restore: exactly one of `http`, `tcp`, `exec` and `log`.", map[string]schema.Attribute{
			"http":    object("Ready when the answer is 2xx or 3xx.", http),
			"tcp":     object("Ready when a connection is accepted.", port()),
			"exec":    texts("Command that exits with 0 when it is ready."),
			"log":     textArgument("Regular expression that matches a line of the main process's output when it is ready."),
			"timeout": textArgument("How long it may take, as a Go duration. Default: `60s`."),
		}),
		"ttl": object("How long a sandbox lives.", map[string]schema.Attribute{
			"default": textArgument("Life of a sandbox that names no `ttl`, as a Go duration."),
			"max":     textArgument("The longest life, extensions included, as a Go duration."),
			"exempt":  textArgument("Allows `max` to be longer than the provider's `max_ttl`, and says why."),
		}),
		"on_expiry":           textArgument("What happens at the end, by the deadline or by `idle_timeout`: `destroy` (default), `snapshot` (then destroy) or `pause`.", stringvalidator.OneOf(string(sdk.OnExpiryDestroy), string(sdk.OnExpirySnapshot), string(sdk.OnExpiryPause))),
		"idle_timeout":        textArgument("Second clock, which can only end a sandbox earlier: how long it lives without being used, as a Go duration. What counts as use is what the backend says of `idle_exec`, `idle_files`, `idle_ports` and `idle_processes`; looking at a sandbox is none. Default: no such clock."),
		"expiry_snapshot_ttl": textArgument("How long the snapshot that `on_expiry = \"snapshot\"` makes is kept, as a Go duration. Default: `168h`."),
		"paused_ttl":          textArgument("How long a sandbox that `on_expiry = \"pause\"` paused is kept before it is destroyed, within its maximum, as a Go duration. Default: `24h`."),
		"max_cost_per_hour":   schema.Float64Attribute{Optional: true, MarkdownDescription: "What the sandboxes of the profile that are alive may cost together for each hour, in US dollars by the provider's `prices`. A create beyond it is refused."},
		"max_committed":       schema.Float64Attribute{Optional: true, MarkdownDescription: "What the sandboxes of the profile that are alive may cost together from their creation to their deadlines, in US dollars by the provider's `prices`. A create or extend beyond it is refused."},
		"requires":            textMap("The least that the profile needs of a backend: features with a class, `enforced`, `best_effort`, `emulated` or `unverifiable`. A backend that promises less is refused at plan."),
		"labels":              textMap("Labels of every sandbox of this profile."),
	}
}
