module github.com/leasegen/leasegen/runtime/leasesql/sqltest

go 1.26.0

replace github.com/leasegen/leasegen => ../../..

require (
	entgo.io/ent v0.14.5
	github.com/jmoiron/sqlx v1.4.0
	github.com/leasegen/leasegen v0.0.0
	github.com/lib/pq v1.12.3
	gorm.io/driver/postgres v1.6.3
	gorm.io/gorm v1.31.2
)

require (
	github.com/google/uuid v1.3.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/jinzhu/inflection v1.0.0 // indirect
	github.com/jinzhu/now v1.1.5 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
