package rows

import "errors"

// Forget deletes a consumer that no live session is a member of and that has no dead letters, with its leases, cursors and parked
// messages. A consumer of that name begins again.
func (o Operator) Forget(consumer string) error {
	r := o.rows
	if r.Consumers[consumer] == nil {
		return errNoConsumer
	}
	if len(r.survey(consumer).Members) > 0 {
		return errors.New("it has live members; stop its processes first")
	}
	for _, d := range r.Dead {
		if d.Consumer == consumer {
			return errors.New("it has dead letters; replay or purge them first")
		}
	}
	if changed := r.Changed; changed != nil {
		gone := map[string]*Lease{}
		for resource := range r.Leases[consumer] {
			gone[resource] = nil
		}
		changed.Consumers[consumer], changed.Leases[consumer] = nil, gone
	}
	delete(r.Consumers, consumer)
	delete(r.Leases, consumer)
	r.Handovers++
	return nil
}
