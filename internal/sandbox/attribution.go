// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"cmp"
)

// Attribution says whose a sandbox is and what it was made for.
type Attribution struct {
	Owner string // team or person
	Task  string // what it is for
	Run   string // url or id of the run that made it
	Actor string // who or what made it
}

// ciSystem is how one CI system names the facts of a run in its environment.
type ciSystem struct {
	mark  string // set exactly when this system runs the job
	owner func(get func(string) string) string
	task  func(get func(string) string) string
	run   func(get func(string) string) string
	actor func(get func(string) string) string
}

func first(names ...string) func(func(string) string) string {
	return func(get func(string) string) string {
		for _, name := range names {
			if value := get(name); value != "" {
				return value
			}
		}
		return ""
	}
}

// ciSystems are the documented default variables of each system.
var ciSystems = []ciSystem{
	{
		mark: "GITHUB_ACTIONS", owner: first("GITHUB_REPOSITORY"), task: first("GITHUB_WORKFLOW"), actor: first("GITHUB_ACTOR"),
		run: func(get func(string) string) string {
			if get("GITHUB_SERVER_URL") == "" || get("GITHUB_REPOSITORY") == "" {
				return get("GITHUB_RUN_ID")
			}
			return get("GITHUB_SERVER_URL") + "/" + get("GITHUB_REPOSITORY") + "/actions/runs/" + get("GITHUB_RUN_ID")
		},
	},
	{mark: "GITLAB_CI", owner: first("CI_PROJECT_PATH"), task: first("CI_JOB_NAME"), run: first("CI_JOB_URL", "CI_JOB_ID"), actor: first("GITLAB_USER_LOGIN")},
	{mark: "BUILDKITE", owner: first("BUILDKITE_PIPELINE_SLUG"), task: first("BUILDKITE_LABEL", "BUILDKITE_STEP_KEY"), run: first("BUILDKITE_BUILD_URL", "BUILDKITE_BUILD_ID"), actor: first("BUILDKITE_BUILD_CREATOR")},
	{mark: "JENKINS_URL", owner: first("JOB_NAME"), task: first("STAGE_NAME", "JOB_BASE_NAME"), run: first("BUILD_URL", "BUILD_TAG"), actor: first("BUILD_USER_ID")},
	{mark: "CIRCLECI", owner: first("CIRCLE_PROJECT_REPONAME"), task: first("CIRCLE_JOB"), run: first("CIRCLE_BUILD_URL", "CIRCLE_WORKFLOW_ID"), actor: first("CIRCLE_USERNAME")},
	{mark: "TF_BUILD", owner: first("BUILD_REPOSITORY_NAME"), task: first("SYSTEM_JOBDISPLAYNAME", "BUILD_DEFINITIONNAME"), run: first("BUILD_BUILDURI", "BUILD_BUILDID"), actor: first("BUILD_REQUESTEDFOR")},
}

// Or returns the attribution with its empty fields taken from another.
func (a Attribution) Or(b Attribution) Attribution {
	return Attribution{
		Owner: cmp.Or(a.Owner, b.Owner), Task: cmp.Or(a.Task, b.Task), Run: cmp.Or(a.Run, b.Run), Actor: cmp.Or(a.Actor, b.Actor),
	}
}

// Fill completes an attribution from CI's environment; what is set stays.
// Outside CI, the actor is the user's name.
func (a Attribution) Fill(get func(string) string) Attribution {
	for _, system := range ciSystems {
		if get(system.mark) == "" {
			continue
		}
		a = a.Or(Attribution{
			Owner: bound(system.owner(get)), Task: bound(system.task(get)), Run: bound(system.run(get)), Actor: bound(system.actor(get)),
		})
		break
	}
	return a.Or(Attribution{Actor: bound(first("USER", "LOGNAME", "USERNAME")(get))})
}

// bound keeps outside text printable and short enough for a label.
func bound(s string) string {
	const most = 256
	out := make([]rune, 0, min(len(s), most))
	for _, r := range s {
		if r < 0x20 || r == 0x7F || r == 0xFFFD {
			continue
		}
		if len(out) == most {
			break
		}
		out = append(out, r)
	}
	return string(out)
}
