package main

// The fields of four kinds of GitHub webhook that this service looks at. Deliveries of
// every other kind are handled as raw JSON.

type account struct {
	Login string `json:"login"`
}

type repository struct {
	FullName string `json:"full_name"`
}

// Push is a push of commits.
//
//leasegen:event name=push key=Sender.Login
type Push struct {
	Ref     string `json:"ref"`
	Commits []struct {
		ID string `json:"id"`
	} `json:"commits"`
	Repository repository `json:"repository"`
	Sender     account    `json:"sender"`
}

// Issues is a change of an issue.
//
//leasegen:event name=issues key=Sender.Login
type Issues struct {
	Action string `json:"action"`
	Issue  struct {
		Number int    `json:"number"`
		Title  string `json:"title"`
	} `json:"issue"`
	Repository repository `json:"repository"`
	Sender     account    `json:"sender"`
}

// PullRequest is a change of a pull request.
//
//leasegen:event name=pull_request key=Sender.Login
type PullRequest struct {
	Action     string     `json:"action"`
	Number     int        `json:"number"`
	Repository repository `json:"repository"`
	Sender     account    `json:"sender"`
}

// Installation is a change of an app's installation. GitHub sends its created_at as a
// number or as a string; this service insists on the number, so some become dead letters.
//
//leasegen:event name=installation key=Sender.Login
type Installation struct {
	Action       string `json:"action"`
	Installation struct {
		ID        int64 `json:"id"`
		CreatedAt int64 `json:"created_at"`
	} `json:"installation"`
	Sender account `json:"sender"`
}
