// Package manifests holds the YAML of docs to Kubernetes' own types, and to what the pages say around it. It is a module of its
// own, for which alone these types are fetched.
package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const docs = "../../../docs"

var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// read decodes the manifests of a page. A field that does not exist, is given twice or has another type is an error.
func read(t *testing.T, page string) (
	deployments []apps.Deployment, budgets []policy.PodDisruptionBudget, jobs []batch.Job, text string,
) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range fence.FindAllStringSubmatch(string(b), -1) {
		for manifest := range strings.SplitSeq(block[1], "---\n") {
			var kind meta.TypeMeta
			if err := yaml.Unmarshal([]byte(manifest), &kind); err != nil {
				t.Fatalf("%s: %v\n%s", page, err, manifest)
			}
			switch kind.APIVersion + " " + kind.Kind {
			case "apps/v1 Deployment":
				deployments = append(deployments, strict[apps.Deployment](t, page, manifest))
			case "policy/v1 PodDisruptionBudget":
				budgets = append(budgets, strict[policy.PodDisruptionBudget](t, page, manifest))
			case "batch/v1 Job":
				jobs = append(jobs, strict[batch.Job](t, page, manifest))
			default:
				t.Errorf("%s: %+v is not tested", page, kind)
			}
		}
	}
	return deployments, budgets, jobs, string(b)
}

func strict[T any](t *testing.T, page, manifest string) (v T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(manifest), &v, yaml.DisallowUnknownFields); err != nil {
		t.Errorf("%s: %v\n%s", page, err, manifest)
	}
	return v
}

func TestManifests(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatal(err, pages)
	}
	for _, page := range pages {
		if filepath.Base(page) != "kubernetes.md" {
			read(t, page)
		}
	}
	deployments, budgets, jobs, text := read(t, filepath.Join(docs, "kubernetes.md"))
	if len(deployments) != 1 || len(budgets) != 1 || len(jobs) != 1 {
		t.Fatalf("%d deployments, %d budgets, %d jobs", len(deployments), len(budgets), len(jobs))
	}
	d, pdb, job := deployments[0], budgets[0], jobs[0]
	pod := d.Spec.Template
	for what, selector := range map[string]*meta.LabelSelector{"Deployment": d.Spec.Selector, "budget": pdb.Spec.Selector,
		"spread": pod.Spec.TopologySpreadConstraints[0].LabelSelector} {
		if s, err := meta.LabelSelectorAsSelector(selector); err != nil || s.Empty() || !s.Matches(labels.Set(pod.Labels)) {
			t.Errorf("the %s does not select the pods: %v, %v", what, s, err)
		}
	}
	c := pod.Spec.Containers[0]
	for path, probe := range map[string]*core.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe.HTTPGet.Path != path || !strings.Contains(text, `mux.Handle("`+path+`", `) {
			t.Errorf("the program does not answer %s, which is to be %s", probe.HTTPGet.Path, path)
		}
		if port := probe.HTTPGet.Port.String(); !slices.ContainsFunc(c.Ports, func(p core.ContainerPort) bool {
			return p.Name == port && strings.Contains(text, `Addr: ":`+strconv.Itoa(int(p.ContainerPort))+`"`)
		}) {
			t.Errorf("the program does not listen on %s", port)
		}
	}
	if c.Resources.Requests.Cpu().IsZero() || !c.Resources.Limits.Cpu().IsZero() {
		t.Errorf("the page says to request CPU and to set no limit: %v", c.Resources)
	}
	drain, ttl := byDefault(t, "drain"), byDefault(t, "ttl")
	if least := drain + 2*time.Second + ttl/3; time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second < least {
		t.Errorf("a pod is killed after %d s, and may take %v to end", *pod.Spec.TerminationGracePeriodSeconds, least)
	} else if sum := regexp.MustCompile(`10 \+ 2 \+ 5 = 17 s by default`); !sum.MatchString(text) || least != 17*time.Second {
		t.Errorf("the page does not say that it may take %v", least)
	}
	if d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 || *pdb.Spec.UnhealthyPodEvictionPolicy != policy.AlwaysAllow {
		t.Error("the text is about another strategy")
	}
	m := job.Spec.Template.Spec.Containers[0]
	if !slices.Equal(m.Command, []string{"/leasegen", "migrate"}) || m.Image != c.Image || m.Env[0].Name != "DATABASE_URL" {
		t.Errorf("the job runs %v of %s", m.Command, m.Image)
	}
	if m.Env[0].ValueFrom.SecretKeyRef.Name == c.Env[0].ValueFrom.SecretKeyRef.Name {
		t.Error("the job connects as the application's role")
	}
	if p := job.Spec.Template.Spec.RestartPolicy; p != core.RestartPolicyNever {
		t.Errorf("a job cannot restart its pods by %s", p)
	}
}

// byDefault is the default of an argument, as the page on directives says.
func byDefault(t *testing.T, argument string) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docs, "directives.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?m)^\\| `" + argument + "` \\|.*\\| default ([0-9a-z]+);").FindSubmatch(text)
	if m == nil {
		t.Fatalf("docs/directives.md has no default of %s", argument)
	}
	d, err := time.ParseDuration(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return d
}
