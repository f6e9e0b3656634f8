module github.com/waybill/waybill-go

go 1.23
